"""The Euclidean length of a change."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from lipforge import rng
from lipforge.attacks.norms import Norm, nearest_on_hyperplane


@dataclass(frozen=True)
class L2(Norm):
    """sqrt(sum d_i^2); its own dual."""

    def project(self, x_adv: Tensor, x: Tensor, eps: float) -> Tensor:
        """`x_adv` shrunk onto the ball, then clamped to [0, 1], which keeps it in the ball as `x` lies in [0, 1]."""
        change = x_adv - x
        shrink = (eps / _length(change).clamp_min(1e-12)).clamp_max(1.0)
        return (x + change * shrink).clamp(0.0, 1.0)

    def distance(self, change: Tensor) -> Tensor:
        return _length(change).flatten()

    def dual_size(self, gradient: Tensor) -> Tensor:
        return _length(gradient).flatten()

    def steepest_step(self, gradient: Tensor, size: float | Tensor) -> Tensor:
        """`size` times the gradient at length 1."""
        # Scaled by the largest entry first: the squares of a tiny gradient would underflow to a length of 0.
        scaled = gradient / gradient.abs().flatten(1).amax(dim=1).clamp_min(1e-38)[:, None, None, None]
        return size * scaled / _length(scaled).clamp_min(1e-12)

    def random_start(
        self, x: Tensor, eps: float, *, seed: int, sample_ids: Tensor, stream: str, counter: int = 0
    ) -> Tensor:
        """A point uniform in the ball, clamped to [0, 1]."""
        direction = self.noise(sample_ids, x, seed=seed, stream=stream, counter=counter)
        share = rng.uniform(
            seed, sample_ids, stream=f"{stream}/radius", shape=(1, 1, 1), counter=counter, dtype=x.dtype
        )
        radius = eps * share ** (1.0 / math.prod(x.shape[1:]))
        return self.project(x + direction * (radius / _length(direction)), x, eps)

    def to_hyperplane(self, point: Tensor, normal: Tensor, excess: Tensor) -> Tensor:
        """Entries move along the normal until they reach the box."""
        return nearest_on_hyperplane(point, normal, excess, normal.abs())


def _length(change: Tensor) -> Tensor:
    length: Tensor = torch.linalg.vector_norm(change, dim=(1, 2, 3), keepdim=True)
    return length


NORM = L2("l2", 2, smooth=True)
