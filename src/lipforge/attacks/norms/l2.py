"""The Euclidean length of a change, which is its own dual."""

import math
from dataclasses import dataclass

from torch import Tensor

from lipforge import rng
from lipforge.attacks.norms import Norm, nearest_on_hyperplane


@dataclass(frozen=True)
class L2(Norm):
    """sqrt(sum d_i^2)."""

    def project(self, x_adv: Tensor, x: Tensor, eps: float | Tensor) -> Tensor:
        change = x_adv - x
        shrink = (eps / self._length(change).clamp_min(1e-12)).clamp_max(1.0)
        return (x + change * shrink).clamp(0.0, 1.0)  # which keeps it in the ball, as `x` lies in [0, 1]

    def steepest_step(self, gradient: Tensor, size: float | Tensor) -> Tensor:
        # Scaled by the largest entry first: the squares of a tiny gradient would underflow to a length of 0.
        scaled = gradient / gradient.abs().flatten(1).amax(dim=1).clamp_min(1e-38)[:, None, None, None]
        return size * scaled / self._length(scaled).clamp_min(1e-12)

    def random_start(
        self, x: Tensor, eps: float, *, seed: int, sample_ids: Tensor, stream: str, counter: int = 0
    ) -> Tensor:
        direction = self.noise(seed, sample_ids, stream=stream, shape=x.shape[1:], counter=counter, dtype=x.dtype)
        share = rng.uniform(
            seed, sample_ids, stream=f"{stream}/radius", shape=(1, 1, 1), counter=counter, dtype=x.dtype
        )
        radius = eps * share ** (1.0 / math.prod(x.shape[1:]))
        return self.project(x + direction * (radius / self._length(direction)), x, eps)

    def to_hyperplane(self, point: Tensor, normal: Tensor, excess: Tensor) -> Tensor:
        return nearest_on_hyperplane(point, normal, excess, speed=normal.abs())

    def _length(self, change: Tensor) -> Tensor:
        return self.distance(change)[:, None, None, None]


NORM = L2("l2", 2, smooth=True)
