"""The few layers and the initialisation that the residual networks share."""

from typing import Literal

from torch import nn

from lipforge.errors import InputError

Activation = Literal["relu", "silu"]


def conv3x3(in_channels: int, out_channels: int, stride: int = 1) -> nn.Conv2d:
    """A 3x3 convolution that keeps the size at stride 1; no bias, because a batch norm follows sooner or later."""
    return nn.Conv2d(in_channels, out_channels, kernel_size=3, stride=stride, padding=1, bias=False)


def conv1x1(in_channels: int, out_channels: int, stride: int = 1) -> nn.Conv2d:
    """A 1x1 convolution without bias: the shortcut where a block changes the shape."""
    return nn.Conv2d(in_channels, out_channels, kernel_size=1, stride=stride, bias=False)


def activation_layer(name: Activation) -> nn.Module:
    """The activation by its name."""
    layers = {"relu": nn.ReLU, "silu": nn.SiLU}
    if name not in layers:
        raise InputError(f"activation must be one of {', '.join(layers)}, got {name!r}")
    return layers[name]()


def init_residual_(model: nn.Module) -> None:
    """He initialisation (normal, fan out) of every convolution and a zero bias of every linear layer."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        elif isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)
