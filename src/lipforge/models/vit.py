"""A vision transformer for small images, with the parameter names of timm (`blocks.0.attn.qkv`, `blocks.0.mlp.fc1`)."""

from collections.abc import Sequence
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lipforge.errors import InputError
from lipforge.models.layers import CIFAR10_MEAN, CIFAR10_STD, Normalize

# timm's vision transformers use this epsilon; torch's default is ten times larger.
LAYER_NORM_EPS = 1e-6


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
        class_token = self.cls_token.expand(len(patches), -1, -1)
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
    """Multi-head self-attention."""

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
    """`fc2(gelu(fc1(x)))`."""

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(dim, hidden)
        self.fc2 = nn.Linear(hidden, dim)

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.fc2(F.gelu(self.fc1(x))))


vit = VisionTransformer
