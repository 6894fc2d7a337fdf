"""Our own networks for 32x32 images: residual ones with the parameter names of public CIFAR checkpoints, and a ViT.

ResNet (He et al. 2016a) and PreActResNet-18 (2016b) use `layer1.0.conv1` and `linear`; WideResNet (Zagoruyko and
Komodakis 2016) uses the names of TRADES and AWP, `block1.layer.0.convShortcut` and `fc`; the ViT has timm's.
"""

from collections.abc import Sequence
from typing import Any, Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lipforge.errors import InputError

CIFAR10_MEAN, CIFAR10_STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
Activation = Literal["relu", "silu"]
Shortcut = Literal["pad", "conv"]
ACTIVATIONS = {"relu": nn.ReLU, "silu": nn.SiLU}
# timm's vision transformers use this epsilon; torch's default is ten times larger.
LAYER_NORM_EPS = 1e-6


class Normalize(nn.Module):
    """`(images - mean) / std` per channel, so that the model behind it takes images in [0, 1].

    Both are buffers that are not persistent: they follow the model to its device, and a checkpoint holds learned
    tensors only, so that one trained with the normalisation outside of the model fits.

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


class ResNet(nn.Module):
    """A CIFAR ResNet of `depth` = 6n + 2 layers: three stages of n blocks with `width`, 2 and 4 `width` channels.

    The shortcut of a block that changes the shape is option A ("pad") or B ("conv", with batch norm) of the paper.
    """

    def __init__(
        self,
        depth: int = 20,
        width: int = 16,
        classes: int = 10,
        *,
        shortcut: Shortcut = "pad",
        mean: Sequence[float] = CIFAR10_MEAN,
        std: Sequence[float] = CIFAR10_STD,
    ) -> None:
        super().__init__()
        if depth < 8 or depth % 6 != 2:
            raise InputError(f"depth must be 6n + 2 (8, 14, 20, 32, 44, 56, 110, ...), got {depth}")
        if shortcut not in ("pad", "conv"):
            raise InputError(f"shortcut must be 'pad' or 'conv', got {shortcut!r}")
        blocks = (depth - 2) // 6
        self.normalize = Normalize(mean, std)
        self.conv1 = conv(3, width)
        self.bn1 = nn.BatchNorm2d(width)
        self.layer1 = stage(BasicBlock, (width, width), blocks, 1, shortcut)
        self.layer2 = stage(BasicBlock, (width, 2 * width), blocks, 2, shortcut)
        self.layer3 = stage(BasicBlock, (2 * width, 4 * width), blocks, 2, shortcut)
        self.linear = nn.Linear(4 * width, classes)
        init_residual_(self)

    def forward(self, images: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(self.normalize(images))))
        x = self.layer3(self.layer2(self.layer1(x)))
        return cast(Tensor, self.linear(x.mean(dim=(2, 3))))


class BasicBlock(nn.Module):
    """`relu(x' + bn2(conv2(relu(bn1(conv1(x))))))`, with x' the shortcut of x."""

    def __init__(self, in_channels: int, channels: int, stride: int, shortcut: Shortcut) -> None:
        super().__init__()
        self.conv1 = conv(in_channels, channels, stride)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = conv(channels, channels)
        self.bn2 = nn.BatchNorm2d(channels)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or in_channels != channels:
            self.shortcut = (
                PadShortcut(channels - in_channels, stride)
                if shortcut == "pad"
                else nn.Sequential(conv(in_channels, channels, stride, size=1), nn.BatchNorm2d(channels))
            )

    def forward(self, x: Tensor) -> Tensor:
        residual = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(self.shortcut(x) + residual)


class PadShortcut(nn.Module):
    """Every `stride`-th pixel, with zero channels added, half of them on each side."""

    def __init__(self, channels: int, stride: int) -> None:
        super().__init__()
        self.before, self.after, self.stride = channels // 2, channels - channels // 2, stride

    def forward(self, x: Tensor) -> Tensor:
        return F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.before, self.after))

    def extra_repr(self) -> str:
        return f"channels={self.before + self.after}, stride={self.stride}"


class PreActResNet(nn.Module):
    """PreActResNet-18: four stages of two pre-activation blocks, batch norm and ReLU before the head."""

    def __init__(
        self,
        classes: int = 10,
        *,
        width: int = 64,
        mean: Sequence[float] = CIFAR10_MEAN,
        std: Sequence[float] = CIFAR10_STD,
    ) -> None:
        super().__init__()
        self.normalize = Normalize(mean, std)
        self.conv1 = conv(3, width)
        self.layer1 = stage(PreActBlock, (width, width), 2, 1)
        self.layer2 = stage(PreActBlock, (width, 2 * width), 2, 2)
        self.layer3 = stage(PreActBlock, (2 * width, 4 * width), 2, 2)
        self.layer4 = stage(PreActBlock, (4 * width, 8 * width), 2, 2)
        self.bn = nn.BatchNorm2d(8 * width)
        self.linear = nn.Linear(8 * width, classes)
        init_residual_(self)

    def forward(self, images: Tensor) -> Tensor:
        x = self.conv1(self.normalize(images))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return cast(Tensor, self.linear(F.relu(self.bn(x)).mean(dim=(2, 3))))


class PreActBlock(nn.Module):
    """`x' + conv2(relu(bn2(conv1(a))))` with `a = relu(bn1(x))`; a block that changes the shape takes x' from a."""

    def __init__(self, in_channels: int, channels: int, stride: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(in_channels)
        self.conv1 = conv(in_channels, channels, stride)
        self.bn2 = nn.BatchNorm2d(channels)
        self.conv2 = conv(channels, channels)
        changes_shape = stride != 1 or in_channels != channels
        self.shortcut = nn.Sequential(conv(in_channels, channels, stride, size=1)) if changes_shape else None

    def forward(self, x: Tensor) -> Tensor:
        activated = F.relu(self.bn1(x))
        carried = x if self.shortcut is None else self.shortcut(activated)
        return cast(Tensor, carried + self.conv2(F.relu(self.bn2(self.conv1(activated)))))


class WideResNet(nn.Module):
    """A WideResNet of `depth` = 6n + 4 layers: three stages of n blocks with 16, 32 and 64 times `width` channels."""

    def __init__(
        self,
        depth: int = 28,
        width: int = 10,
        classes: int = 10,
        *,
        activation: Activation = "relu",
        mean: Sequence[float] = CIFAR10_MEAN,
        std: Sequence[float] = CIFAR10_STD,
    ) -> None:
        super().__init__()
        if depth < 10 or depth % 6 != 4:
            raise InputError(f"depth must be 6n + 4 (10, 16, 22, 28, 34, 70, ...), got {depth}")
        if width < 1:
            raise InputError(f"width must be at least 1, got {width}")
        if activation not in ACTIVATIONS:
            raise InputError(f"activation must be one of {', '.join(ACTIVATIONS)}, got {activation!r}")
        blocks = (depth - 4) // 6
        self.normalize = Normalize(mean, std)
        self.conv1 = conv(3, 16)
        self.block1 = WideStage((16, 16 * width), blocks, 1, activation)
        self.block2 = WideStage((16 * width, 32 * width), blocks, 2, activation)
        self.block3 = WideStage((32 * width, 64 * width), blocks, 2, activation)
        self.bn1 = nn.BatchNorm2d(64 * width)
        self.activation = ACTIVATIONS[activation]()
        self.fc = nn.Linear(64 * width, classes)
        init_residual_(self)

    def forward(self, images: Tensor) -> Tensor:
        x = self.conv1(self.normalize(images))
        x = self.block3(self.block2(self.block1(x)))
        return cast(Tensor, self.fc(self.activation(self.bn1(x)).mean(dim=(2, 3))))


class WideStage(nn.Module):
    """A `stage` behind the name `layer`, as checkpoints have it."""

    def __init__(self, shape: tuple[int, int], blocks: int, stride: int, activation: Activation) -> None:
        super().__init__()
        self.layer = stage(WideBlock, shape, blocks, stride, activation)

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.layer(x))


class WideBlock(nn.Module):
    """`x' + conv2(act(bn2(conv1(a))))` with `a = act(bn1(x))`; a block that changes the width takes x' from a."""

    def __init__(self, in_channels: int, channels: int, stride: int, activation: Activation) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(in_channels)
        self.conv1 = conv(in_channels, channels, stride)
        self.bn2 = nn.BatchNorm2d(channels)
        self.conv2 = conv(channels, channels)
        # Two modules, so that masks in front of activations (MeanSparse) keep their statistics apart.
        self.activation1, self.activation2 = ACTIVATIONS[activation](), ACTIVATIONS[activation]()
        # A stride always comes with more channels here, except in WRN-d-1's first stage, which has stride 1.
        self.convShortcut = conv(in_channels, channels, stride, size=1) if in_channels != channels else None

    def forward(self, x: Tensor) -> Tensor:
        activated = self.activation1(self.bn1(x))
        carried = x if self.convShortcut is None else self.convShortcut(activated)
        return cast(Tensor, carried + self.conv2(self.activation2(self.bn2(self.conv1(activated)))))


def conv(in_channels: int, out_channels: int, stride: int = 1, *, size: int = 3) -> nn.Conv2d:
    """A convolution that keeps the size at stride 1; no bias, because a batch norm follows sooner or later."""
    return nn.Conv2d(in_channels, out_channels, kernel_size=size, stride=stride, padding=size // 2, bias=False)


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


class VisionTransformer(nn.Module):
    """A pre-norm vision transformer: patches and learned positions, blocks, linear head on the class token."""

    def __init__(
        self,
        dim: int = 384,
        depth: int = 7,
        heads: int = 6,
        classes: int = 10,
        *,
        image_size: int = 32,
        patch_size: int = 4,
        mlp_ratio: int = 4,
        mean: Sequence[float] = CIFAR10_MEAN,
        std: Sequence[float] = CIFAR10_STD,
    ) -> None:
        super().__init__()
        if image_size % patch_size:
            raise InputError(f"image_size must be a multiple of patch_size, got {image_size} and {patch_size}")
        if dim % heads:
            raise InputError(f"dim must be a multiple of heads, got {dim} and {heads}")
        self.normalize = Normalize(mean, std)
        self.patch_embed = PatchEmbed(dim, patch_size)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, dim))
        self.pos_embed = nn.Parameter(torch.zeros(1, (image_size // patch_size) ** 2 + 1, dim))
        self.blocks = nn.Sequential(*(Block(dim, heads, mlp_ratio) for _ in range(depth)))
        self.norm = nn.LayerNorm(dim, eps=LAYER_NORM_EPS)
        self.head = nn.Linear(dim, classes)
        nn.init.trunc_normal_(self.pos_embed, std=0.02)
        nn.init.trunc_normal_(self.cls_token, std=0.02)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.02)
                nn.init.zeros_(module.bias)

    def forward(self, images: Tensor) -> Tensor:
        patches = self.patch_embed(self.normalize(images))
        class_token = self.cls_token.expand(patches.shape[0], -1, -1)  # len() would fix the batch of an exported model
        x = torch.cat([class_token, patches], dim=1) + self.pos_embed
        return cast(Tensor, self.head(self.norm(self.blocks(x))[:, 0]))


class PatchEmbed(nn.Module):
    """Images (N, 3, H, W) to tokens (N, HW / patch_size^2, dim)."""

    def __init__(self, dim: int, patch_size: int) -> None:
        super().__init__()
        self.proj = nn.Conv2d(3, dim, kernel_size=patch_size, stride=patch_size)

    def forward(self, images: Tensor) -> Tensor:
        return cast(Tensor, self.proj(images).flatten(2).transpose(1, 2))


class Block(nn.Module):
    """Attention and MLP, each on the layer norm of its input and added to it."""

    def __init__(self, dim: int, heads: int, mlp_ratio: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim, eps=LAYER_NORM_EPS)
        self.attn = Attention(dim, heads)
        self.norm2 = nn.LayerNorm(dim, eps=LAYER_NORM_EPS)
        self.mlp = Mlp(dim, mlp_ratio * dim)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        return cast(Tensor, x + self.mlp(self.norm2(x)))


class Attention(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        count, tokens, dim = x.shape
        qkv = self.qkv(x).view(count, tokens, 3, self.heads, dim // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value)
        return cast(Tensor, self.proj(mixed.transpose(1, 2).reshape(count, tokens, dim)))


class Mlp(nn.Module):
    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(dim, hidden)
        self.fc2 = nn.Linear(hidden, dim)

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.fc2(F.gelu(self.fc1(x))))


resnet, preact_resnet18, wide_resnet, vit = ResNet, PreActResNet, WideResNet, VisionTransformer
