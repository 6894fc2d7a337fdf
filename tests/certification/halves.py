"""A classifier whose smoothed radius is known: a half space."""

from dataclasses import dataclass

import torch
from torch import Tensor

SHAPE = (3, 4, 4)


@dataclass(frozen=True)
class HalfSpace:
    """Class 1 where w x > b, else class 0. Smoothing leaves it as it is, so the true radius is the distance to it."""

    weight: Tensor
    bias: float

    def __call__(self, x: Tensor) -> Tensor:
        score = x.flatten(1).to(self.weight) @ self.weight - self.bias
        return torch.stack([-score, score], dim=1)

    def distance(self, x: Tensor) -> Tensor:
        return (x.flatten(1).to(self.weight) @ self.weight - self.bias) / self.weight.norm()

    def at_distance(self, distance: float, count: int) -> Tensor:
        """The same image `count` times, at this distance inside class 1."""
        x = torch.full((1, *SHAPE), 0.5)
        x = x + (distance - self.distance(x)) * (self.weight / self.weight.norm()).view(1, *SHAPE)
        assert 0 <= x.min() <= x.max() <= 1
        return x.float().expand(count, -1, -1, -1).contiguous()


def half_space(seed: int = 0) -> HalfSpace:
    weight = torch.randn(48, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return HalfSpace(weight, float(weight.sum() / 2))
