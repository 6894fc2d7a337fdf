"""Obfuscated gradients: what broken defences do to images, layers, logits and gradients."""

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

LEVEL = 1 / 255


class _Backward(torch.autograd.Function):
    """The value of `y`, and for `x` the gradient that `change` makes of that of `y`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.change = change
        return y.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return ctx.change(gradients[0]), None, None


class StraightThrough(nn.Module):
    """The change with an identity backward pass (BPDA)."""

    def __init__(self, change: nn.Module) -> None:
        super().__init__()
        self.change = change

    def forward(self, x: Tensor) -> Tensor:
        return _Backward.apply(x, self.change(x.detach()), lambda gradient: gradient)


class WrongGradient(nn.Module):
    """The identity; a fixed random `share` of the input gradient's entries comes back negated."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share

    def forward(self, x: Tensor) -> Tensor:
        draw = torch.rand(x.shape[1:], generator=torch.Generator().manual_seed(0)).to(x)
        sign = 1 - 2 * (draw < self.share).to(x)
        return _Backward.apply(x, x, lambda gradient: gradient * sign)


class Function(nn.Module):
    """A plain function of a tensor as a module."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


class Dct(nn.Module):
    """Rounds the DCT coefficients of 8x8 blocks to multiples of `step`; `leak` is the share of the identity in the
    gradient, which is 0 otherwise."""

    def __init__(self, step: float, leak: float) -> None:
        super().__init__()
        self.step, self.leak = step, leak
        row = torch.arange(8.0)
        basis = torch.cos(math.pi / 8 * (row + 0.5) * row[:, None]) / 2
        basis[0] /= math.sqrt(2)
        self.register_buffer("basis", basis)

    def forward(self, x: Tensor) -> Tensor:
        count, channels, height, width = x.shape
        blocks = x.reshape(count, channels, height // 8, 8, width // 8, 8)
        coefficients = torch.einsum("ui,nchiwj,vj->nchuwv", self.basis, blocks, self.basis)
        rounded = (coefficients / self.step).round() * self.step
        image = torch.einsum("ui,nchuwv,vj->nchiwj", self.basis, rounded, self.basis).reshape(x.shape)
        return image + self.leak * (x - x.detach())


class Decoy(nn.Module):
    """Adds a huge term that varies fast with the image to the largest logit, which stays the largest."""

    def __init__(self, base: nn.Module, size: float = 1000.0, frequency: float = 300.0) -> None:
        super().__init__()
        self.base, self.size, self.frequency = base, size, frequency

    def forward(self, x: Tensor) -> Tensor:
        logits = self.base(x)
        pattern = torch.randn(x.shape[1:], generator=torch.Generator().manual_seed(0)).to(x)
        term = self.size * (1 + torch.sin(self.frequency * (x * pattern).flatten(1).mean(dim=1)))
        return logits + term[:, None] * F.one_hot(logits.argmax(dim=1), logits.shape[1])


class LinearDecoy(nn.Module):
    """Keeps the class of the base; all other logits are linear in the image and know nothing of the base, so that
    their gradients are true and lead nowhere."""

    def __init__(self, base: nn.Module) -> None:
        super().__init__()
        self.base = base

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            logits = self.base(x)
        signs = torch.randint(0, 2, (logits.shape[1], x[0].numel()), generator=torch.Generator().manual_seed(0))
        line = (x.flatten(1) - 0.5) @ (2.0 * signs.to(x) - 1).T / x[0].numel()
        others = 100 * (line - 25 * LEVEL)
        return torch.where(F.one_hot(logits.argmax(dim=1), logits.shape[1]).bool(), torch.zeros_like(others), others)


class FlatDecoy(LinearDecoy):
    """A linear decoy that gives way to the base's own logits where two of them are close: gradients are honest at the
    boundary, and lead nowhere from the images."""

    def forward(self, x: Tensor) -> Tensor:
        logits = self.base(x)
        best, second = logits.topk(2, dim=1).values.unbind(dim=1)
        return torch.where((best - second < 0.5)[:, None], logits, super().forward(x))


class LabelChange(nn.Module):
    """Swaps the two largest logits of an image with more high-frequency energy than nearly all clean ones have."""

    def __init__(self, base: nn.Module, clean: Tensor) -> None:
        super().__init__()
        self.base, self.limit = base, float(energy(clean).quantile(0.95))

    def forward(self, x: Tensor) -> Tensor:
        logits = self.base(x)
        top = logits.topk(2, dim=1)
        swapped = logits.scatter(1, top.indices, top.values.flip(1))
        return torch.where((energy(x) > self.limit)[:, None], swapped, logits)


def energy(x: Tensor) -> Tensor:
    """The mean absolute second difference (N,) along both axes at once: large for pixels that alternate."""
    corners = x[..., 1:, 1:] - x[..., :-1, 1:] - x[..., 1:, :-1] + x[..., :-1, :-1]
    return corners.abs().flatten(1).mean(dim=1)


def rounding(levels: int) -> Callable[[Tensor], Tensor]:
    return lambda x: torch.round(x * (levels - 1)) / (levels - 1)


def staircase(levels: int, steepness: float) -> Callable[[Tensor], Tensor]:
    """Smooth steps between the levels: steep half way between two of them, nearly flat elsewhere."""

    def change(x: Tensor) -> Tensor:
        scaled = x * (levels - 1)
        level = scaled.detach().floor()
        return (level + torch.sigmoid(steepness * (scaled - level - 0.5))) / (levels - 1)

    return change


def wiggle(amplitude: float, frequency: float) -> Callable[[Tensor], Tensor]:
    return lambda x: x + amplitude * torch.sin(frequency * x)


def thermometer(levels: int) -> Callable[[Tensor], Tensor]:
    """The share of levels that a pixel exceeds; 0 times the image keeps a gradient of 0 where there would be none."""

    def change(x: Tensor) -> Tensor:
        thresholds = (torch.arange(levels, device=x.device, dtype=x.dtype) + 0.5) / levels
        return (x[..., None] > thresholds).to(x).mean(dim=-1) + 0 * x

    return change


def snap(x: Tensor) -> Tensor:
    """Continuous, and flat within 0.3/255 of the 8-bit grid, where the clean images are."""
    grid = (x.detach() / LEVEL).round()
    offset = x / LEVEL - grid
    return LEVEL * (grid + offset.sign() * (offset.abs() - 0.3).clamp_min(0) * 0.5 / 0.2)


def top_share(share: float) -> Callable[[Tensor], Tensor]:
    """k-WTA: zero for all but the largest `share` of an image's activations."""

    def change(h: Tensor) -> Tensor:
        least = h.flatten(1).topk(max(1, round(share * h[0].numel())), dim=1).values[:, -1]
        return h * (h >= least.reshape(-1, *[1] * (h.ndim - 1)))

    return change


def resize_and_pad(x: Tensor) -> Tensor:
    """The images at a random smaller size, at a random place in a frame of zeros."""
    side = x.shape[-1]
    size = int(torch.randint(side - 4, side, ()))
    left, top = (int(torch.randint(0, side - size + 1, ())) for _ in range(2))
    smaller = F.interpolate(x, size=(size, size), mode="bilinear", align_corners=False)
    return F.pad(smaller, (left, side - size - left, top, side - size - top))


def saturate(z: Tensor) -> Tensor:
    """1000 for the largest logit and -1000 for the others, with gradients of 0, unless the two largest are close."""
    middle = z.topk(2, dim=1).values.mean(dim=1, keepdim=True)
    return 1000 * torch.tanh((z - middle) / 0.02)
