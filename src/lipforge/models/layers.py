"""Normalisation as the first layer of a model, and the layers and the initialisation that residual networks share."""

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from lipforge.errors import InputError

CIFAR10_MEAN, CIFAR10_STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
Activation = Literal["relu", "silu"]


class Normalize(nn.Module):
    """`(images - mean) / std` per channel, so that the model behind it takes images in [0, 1].

    Mean and standard deviation are buffers: they follow the model to its device and dtype. They are not
    persistent: they belong to the architecture's arguments, so a checkpoint holds learned tensors only, and
    one that was trained with the normalisation outside of the model fits.

    >>> Normalize([0.5], [0.25])(torch.ones(1, 1, 1, 1)).item()
    2.0
    """

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        if len(mean) != len(std) or not len(mean):
            raise InputError(f"mean and std must have one value per channel, got {len(mean)} and {len(std)}")
        if not all(value > 0 for value in std):
            raise InputError(f"std must be above 0 in every channel, got {list(std)}")
        self.register_buffer("mean", torch.tensor(list(mean)).view(-1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(list(std)).view(-1, 1, 1), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        # Broadcasting would quietly turn a grey image into three channels, or three means into three images.
        if images.shape[-3] != len(self.mean):
            raise InputError(f"images must have {len(self.mean)} channels here, got the shape {tuple(images.shape)}")
        return (images - self.mean) / self.std

    def extra_repr(self) -> str:
        mean, std = ([round(value, 4) for value in part.flatten().tolist()] for part in (self.mean, self.std))
        return f"mean={mean}, std={std}"


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


def stage(block: type[nn.Module], shape: tuple[int, int], blocks: int, stride: int, *options: Any) -> nn.Sequential:
    """Blocks of one width; only the first changes the shape: from and to as many channels as `shape` says."""
    in_channels, channels = shape
    rest = (block(channels, channels, 1, *options) for _ in range(blocks - 1))
    return nn.Sequential(block(in_channels, channels, stride, *options), *rest)


def init_residual_(model: nn.Module) -> None:
    """He initialisation (normal, fan out) of every convolution and a zero bias of every linear layer."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        elif isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)
