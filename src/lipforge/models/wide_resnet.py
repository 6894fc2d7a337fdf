"""WideResNet-depth-width for 32x32 images (Zagoruyko and Komodakis 2016), with ReLU or SiLU.

Parameter names are the ones of the TRADES and AWP checkpoints (`block1.layer.0.convShortcut`, `fc`).
"""

from collections.abc import Sequence

from torch import Tensor, nn

from lipforge.errors import InputError
from lipforge.models.layers import Activation, activation_layer, conv1x1, conv3x3, init_residual_
from lipforge.models.normalize import CIFAR10_MEAN, CIFAR10_STD, Normalize


def wide_resnet(
    depth: int = 28,
    width: int = 10,
    classes: int = 10,
    *,
    activation: Activation = "relu",
    mean: Sequence[float] = CIFAR10_MEAN,
    std: Sequence[float] = CIFAR10_STD,
) -> "WideResNet":
    """A WideResNet of `depth` = 6n + 4 layers: three stages of n blocks with 16, 32 and 64 times `width` channels."""
    if depth < 10 or depth % 6 != 4:
        raise InputError(f"depth must be 6n + 4 (10, 16, 22, 28, 34, 70, ...), got {depth}")
    if width < 1:
        raise InputError(f"width must be at least 1, got {width}")
    return WideResNet((depth - 4) // 6, width, classes, activation, Normalize(mean, std))


class WideResNet(nn.Module):
    """Stem, three stages of `WideBlock`, batch norm, activation, average pool, linear head."""

    def __init__(self, blocks: int, width: int, classes: int, activation: Activation, normalize: Normalize) -> None:
        super().__init__()
        self.normalize = normalize
        self.conv1 = conv3x3(3, 16)
        self.block1 = WideStage(16, 16 * width, blocks, 1, activation)
        self.block2 = WideStage(16 * width, 32 * width, blocks, 2, activation)
        self.block3 = WideStage(32 * width, 64 * width, blocks, 2, activation)
        self.bn1 = nn.BatchNorm2d(64 * width)
        self.activation = activation_layer(activation)
        self.fc = nn.Linear(64 * width, classes)
        init_residual_(self)

    def forward(self, images: Tensor) -> Tensor:
        x = self.conv1(self.normalize(images))
        x = self.block3(self.block2(self.block1(x)))
        logits: Tensor = self.fc(self.activation(self.bn1(x)).mean(dim=(2, 3)))
        return logits


class WideStage(nn.Module):
    """Blocks of one width; the first of them may change the shape."""

    def __init__(self, in_channels: int, channels: int, blocks: int, stride: int, activation: Activation) -> None:
        super().__init__()
        first = WideBlock(in_channels, channels, stride, activation)
        self.layer = nn.Sequential(first, *(WideBlock(channels, channels, 1, activation) for _ in range(blocks - 1)))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x)
        return out


class WideBlock(nn.Module):
    """`x' + conv2(act(bn2(conv1(a))))` with `a = act(bn1(x))`; a block that changes the width takes x' from a."""

    def __init__(self, in_channels: int, channels: int, stride: int, activation: Activation) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(in_channels)
        self.conv1 = conv3x3(in_channels, channels, stride)
        self.bn2 = nn.BatchNorm2d(channels)
        self.conv2 = conv3x3(channels, channels)
        # Two modules, so that masks in front of activations (MeanSparse) keep their statistics apart.
        self.activation1, self.activation2 = activation_layer(activation), activation_layer(activation)
        # A stride always comes with more channels here, except in WRN-d-1's first stage, which has stride 1.
        self.convShortcut = conv1x1(in_channels, channels, stride) if in_channels != channels else None

    def forward(self, x: Tensor) -> Tensor:
        activated = self.activation1(self.bn1(x))
        carried = x if self.convShortcut is None else self.convShortcut(activated)
        out: Tensor = carried + self.conv2(self.activation2(self.bn2(self.conv1(activated))))
        return out
