"""Small classifiers as users write them: each has a habit that forging from outside must cope with."""

from collections.abc import Callable
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

M = TypeVar("M", bound=nn.Module)


class Block(nn.Module):
    """A residual block with functional or in-place ReLUs and a 1x1 projection where the shape changes."""

    def __init__(self, width_in: int, width: int, *, inplace: bool = False) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width_in, width, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.shortcut = nn.Conv2d(width_in, width, 1) if width_in != width else nn.Identity()
        self.inplace = inplace

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)), inplace=self.inplace)
        out = self.bn2(self.conv2(out))
        out += self.shortcut(x)
        return F.relu(out, inplace=self.inplace)


class ResidualNet(nn.Module):
    """Stem, two residual blocks (the second with a projection), head."""

    def __init__(self, width: int = 8, classes: int = 10, *, inplace: bool = False) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.block1 = Block(width, width, inplace=inplace)
        self.block2 = Block(width, 2 * width, inplace=inplace)
        self.head = nn.Linear(2 * width, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x), inplace=self.block1.inplace)
        return self.head(self.block2(self.block1(x)).mean(dim=(2, 3)))


class ReusingNet(nn.Module):
    """One residual conv called three times, with the same weights."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 3, padding=1)
        self.conv = nn.Conv2d(6, 6, 3, padding=1)
        self.head = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for scale in (1.0, 3.0, 2.0):
            x = x + scale * self.conv(F.relu(x))
        return self.head(x.mean(dim=(2, 3)))


class PlainNet(nn.Module):
    """No residual block at all."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 6, 4, stride=2, padding=1),
            nn.ReLU(inplace=True),
            nn.Conv2d(6, 8, 4, stride=2, padding=1),
            nn.ReLU(inplace=True),
            nn.Flatten(),
            nn.Linear(8 * 8 * 8, 12),
            nn.ReLU(inplace=True),
            nn.Linear(12, 10),
        )

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layers(x)
        return out


class AttentionBlock(nn.Module):
    """Pre-norm transformer block: fused qkv and out projections, MLP with GELU."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.fc1, self.fc2 = nn.Linear(dim, 2 * dim), nn.Linear(2 * dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.qkv(self.norm1(x)).chunk(3, dim=-1)
        weights = (query @ key.transpose(-2, -1) / query.shape[-1] ** 0.5).softmax(dim=-1)
        x = x + self.proj(weights @ value)
        return x + self.fc2(F.gelu(self.fc1(self.norm2(x))))


class Transformer(nn.Module):
    """Patch embedding, two blocks, head."""

    def __init__(self, dim: int = 16) -> None:
        super().__init__()
        self.embed = nn.Conv2d(3, dim, 8, stride=8)
        self.blocks = nn.Sequential(AttentionBlock(dim), AttentionBlock(dim))
        self.head = nn.Linear(dim, 10)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.embed(x).flatten(2).transpose(1, 2)
        return self.head(self.blocks(tokens).mean(dim=1))


class TorchAttentionNet(nn.Module):
    """torch's own attention module and encoder layer, whose fast path skips the modules inside."""

    def __init__(self, dim: int = 16) -> None:
        super().__init__()
        self.embed = nn.Conv2d(3, dim, 8, stride=8)
        self.encoder = nn.TransformerEncoderLayer(dim, nhead=2, dim_feedforward=32, batch_first=True, dropout=0.0)
        self.head = nn.Linear(dim, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(self.embed(x).flatten(2).transpose(1, 2)).mean(dim=1))


class SqueezeExciteNet(nn.Module):
    """A residual block whose output is scaled by a gate computed from it."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Conv2d(3, 8, 3, padding=1), nn.Linear(8, 10)
        self.conv1, self.conv2 = nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.reduce, self.expand = nn.Conv2d(8, 2, 1), nn.Conv2d(2, 8, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        out = self.conv2(F.relu(self.conv1(x)))
        out = out * self.expand(F.relu(self.reduce(out.mean(dim=(2, 3), keepdim=True)))).sigmoid()
        return self.head((x + out).mean(dim=(2, 3)))


def images(count: int = 8, seed: int = 0, size: int = 32) -> Tensor:
    """Uniform random images in [0, 1]."""
    return torch.rand(count, 3, size, size, generator=torch.Generator().manual_seed(seed))


def seeded(build: Callable[..., M], seed: int = 0, **arguments: object) -> M:
    """A model of fixed random weights, with batch norms that have seen data, in eval mode."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = build(**arguments)
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.running_mean = torch.rand(module.num_features) - 0.5
                module.running_var = torch.rand(module.num_features) * 1.5 + 0.5
                nn.init.uniform_(module.weight, 0.5, 1.5)
                nn.init.uniform_(module.bias, -0.5, 0.5)
    return model.eval()
