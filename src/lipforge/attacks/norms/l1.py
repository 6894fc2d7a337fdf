"""The sum of all changes: the best ones are sparse, so only APGD and Square know this norm; the dual is linf."""

from dataclasses import dataclass

import torch
from torch import Tensor

from lipforge.attacks.norms import Norm


@dataclass(frozen=True)
class L1(Norm):
    """sum |d_i|."""

    def project(self, x_adv: Tensor, x: Tensor, eps: float) -> Tensor:
        """The nearest point to `x_adv` in the ball and in [0, 1].

        The change d has the signs of y = x_adv - x, and |d_i| = min(max(|y_i| - cut, 0), room_i) with room_i the
        distance to the box on that side. The sum of |d_i| falls as the cut rises: bisection finds the piece, a division
        the cut.
        """
        change = (x_adv - x).flatten(1)
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


NORM = L1("l1", 1, sparse=True)
