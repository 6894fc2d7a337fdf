"""The largest change of an entry: the ball is a cube."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from lipforge import rng
from lipforge.attacks.norms import Norm, nearest_on_hyperplane


@dataclass(frozen=True)
class Linf(Norm):
    """max |d_i|; its dual is the l1 norm."""

    def project(self, x_adv: Tensor, x: Tensor, eps: float) -> Tensor:
        """The nearest point to `x_adv` in the ball and in [0, 1]."""
        return torch.minimum(torch.maximum(x_adv, x - eps), x + eps).clamp(0.0, 1.0)

    def distance(self, change: Tensor) -> Tensor:
        return change.abs().flatten(1).amax(dim=1)

    def dual_size(self, gradient: Tensor) -> Tensor:
        return gradient.abs().flatten(1).sum(dim=1)

    def noise(self, sample_ids: Tensor, like: Tensor, *, seed: int, stream: str, counter: int | Tensor) -> Tensor:
        """Uniform on [-1, 1]."""
        shape = tuple(like.shape[1:])
        return rng.uniform(
            seed, sample_ids, stream=stream, shape=shape, low=-1.0, high=1.0, counter=counter, dtype=like.dtype
        )

    def steepest_step(self, gradient: Tensor, size: float | Tensor) -> Tensor:
        """`size` in the direction of the gradient's sign, in every entry."""
        return size * gradient.sign()

    def random_start(
        self, x: Tensor, eps: float, *, seed: int, sample_ids: Tensor, stream: str, counter: int = 0
    ) -> Tensor:
        """A point uniform in the cube, clamped to [0, 1]."""
        return self.project(x + eps * self.noise(sample_ids, x, seed=seed, stream=stream, counter=counter), x, eps)

    def to_hyperplane(self, point: Tensor, normal: Tensor, excess: Tensor) -> Tensor:
        """Every entry moves equally fast until it reaches the box."""
        return nearest_on_hyperplane(point, normal, excess, torch.ones_like(normal))


NORM = Linf("linf", math.inf, box=True)
