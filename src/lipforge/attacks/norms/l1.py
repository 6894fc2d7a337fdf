"""The sum of all changes: the best ones are sparse; the dual is linf."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from lipforge import rng
from lipforge.attacks.norms import Norm, sparse_step, toward_hyperplane

SPREAD = 100
"""A steepest step changes one entry in this many, as in sparse l1 descent (Tramer and Boneh 2019)."""


@dataclass(frozen=True)
class L1(Norm):
    """sum |d_i|."""

    def project(self, x_adv: Tensor, x: Tensor, eps: float | Tensor) -> Tensor:
        """The nearest point to `x_adv` in the ball and in [0, 1].

        The change d has the signs of y = x_adv - x, and |d_i| = min(max(|y_i| - cut, 0), room_i) with room_i the
        distance to the box on that side. The sum of |d_i| falls as the cut rises: bisection finds the piece, a division
        the cut.
        """
        change = (x_adv - x).flatten(1)
        eps = eps.flatten(1) if isinstance(eps, Tensor) else eps
        size = change.abs()
        room = torch.where(change > 0, 1 - x.flatten(1), x.flatten(1))
        low = torch.zeros_like(size[:, :1])
        high = torch.where(torch.minimum(size, room).sum(1, keepdim=True) > eps, size.amax(1, keepdim=True), low)
        for _ in range(30):
            middle = (low + high) / 2
            over = torch.minimum((size - middle).clamp_min(0.0), room).sum(dim=1, keepdim=True) > eps
            low, high = torch.where(over, middle, low), torch.where(over, high, middle)
        free = (size > high) & (size - high < room)
        capped = torch.where(size - high >= room, room, 0.0).sum(dim=1, keepdim=True)
        exact = ((size * free).sum(1, keepdim=True) + capped - eps) / free.sum(1, keepdim=True).clamp_min(1)
        cut = torch.minimum(torch.maximum(exact, low), high)
        kept = torch.minimum((size - cut).clamp_min(0.0), room)
        return (x + (change.sign() * kept).reshape(x.shape)).clamp(0.0, 1.0)

    def steepest_step(self, gradient: Tensor, size: float | Tensor) -> Tensor:
        count = math.ceil(math.prod(gradient.shape[1:]) / SPREAD)
        return sparse_step(gradient, size, torch.full((len(gradient),), count, device=gradient.device))

    def step(self, point: Tensor, gradient: Tensor, size: float | Tensor, x: Tensor, eps: float | Tensor) -> Tensor:
        # Entries that the box stops are passed over, or every step would be spent on the same few.
        stopped = ((point <= 0) & (gradient < 0)) | ((point >= 1) & (gradient > 0))
        return super().step(point, gradient.masked_fill(stopped, 0.0), size, x, eps)

    def random_start(
        self, x: Tensor, eps: float, *, seed: int, sample_ids: Tensor, stream: str, counter: int = 0
    ) -> Tensor:
        # Laplace noise over the sum of its sizes and of one more exponential number is uniform in the ball.
        size = math.prod(x.shape[1:])
        shares = rng.uniform(seed, sample_ids, stream=stream, shape=(size + 1,), counter=counter, dtype=x.dtype)
        signs = rng.signs(seed, sample_ids, stream=f"{stream}/signs", shape=x.shape[1:], counter=counter, dtype=x.dtype)
        lengths = -torch.log1p(-shares)
        lengths = lengths[:, :size] / lengths.sum(dim=1, keepdim=True)
        return self.project(x + eps * signs * lengths.reshape(x.shape), x, eps)

    def to_hyperplane(self, point: Tensor, normal: Tensor, excess: Tensor) -> Tensor:
        """Entries move to the box one after the other, those that count most first, and the last as far as needed."""
        weight, direction, room = toward_hyperplane(point, normal, excess)
        order = weight.argsort(dim=1, descending=True)
        removed = (weight * room).gather(1, order)
        before = torch.nn.functional.pad(removed.cumsum(dim=1)[:, :-1], (1, 0))
        needed = torch.zeros_like(weight).scatter(1, order, (excess.abs()[:, None] - before).clamp_min(0.0))
        return direction * torch.minimum(needed / weight.clamp_min(1e-38), room)


NORM = L1("l1", 1, sparse=True)
