"""The largest change of an entry: the ball is a cube, and the dual is the l1 norm."""

import math
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from lipforge import rng
from lipforge.attacks.norms import Norm, nearest_on_hyperplane


@dataclass(frozen=True)
class Linf(Norm):
    """max |d_i|."""

    def project(self, x_adv: Tensor, x: Tensor, eps: float | Tensor) -> Tensor:
        return torch.minimum(torch.maximum(x_adv, x - eps), x + eps).clamp(0.0, 1.0)

    def steepest_step(self, gradient: Tensor, size: float | Tensor) -> Tensor:
        return size * gradient.sign()

    def random_start(
        self, x: Tensor, eps: float, *, seed: int, sample_ids: Tensor, stream: str, counter: int = 0
    ) -> Tensor:
        noise = self.noise(seed, sample_ids, stream=stream, shape=x.shape[1:], counter=counter, dtype=x.dtype)
        return self.project(x + eps * noise, x, eps)

    def to_hyperplane(self, point: Tensor, normal: Tensor, excess: Tensor) -> Tensor:
        return nearest_on_hyperplane(point, normal, excess, speed=normal.new_ones(1, 1))


NORM = Linf("linf", math.inf, box=True, noise=partial(rng.uniform, low=-1.0, high=1.0))
