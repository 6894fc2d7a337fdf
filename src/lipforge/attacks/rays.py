"""RayS, a search that sees the predicted class only (Chen and Gu 2020): the check on logits that mislead.

It looks for the corner direction d in {-1, 1}^D along which the class changes first. It flips the signs of one block of
the image after the other, the whole image first and then ever smaller blocks, and keeps a flip if the boundary is no
further away than before. Nothing is random.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from lipforge.attacks.base import Attack, check_least
from lipforge.attacks.state import AttackState
from lipforge.errors import InputError

TOLERANCE = 0.01
"""How far, as a share of the radius, a bisection may stay above the boundary."""


@dataclass(frozen=True)
class RayS(Attack):
    """At most `queries` predictions per image, in linf only.

    The margins of points inside the ball are noted in the result, but nothing in the search depends on them. A robust
    image costs `queries` forwards, one forward for the clean image, and no backward.
    """

    name: ClassVar[str] = "rays"
    queries: int = 1000

    def __post_init__(self) -> None:
        check_least(self, 1, "queries")

    @torch.no_grad()
    def attack(self, state: AttackState) -> None:
        if not state.norm.box:
            name = state.threat.norm
            raise InputError(f"rays knows the norm linf only, got {name}; for {name} without gradients use square")
        at = state.robust()
        rays = Rays(state.x[at], state.eps)
        for _ in range(self.queries):
            if len(at) == 0:
                return
            points = rays.points()
            logits = state.logits(points, at)
            hit = logits.argmax(dim=1) != state.y[at]
            robust = torch.ones_like(hit)
            if (inside := rays.radius <= state.eps).any():
                robust[inside] = state.record(points[inside], at[inside], logits[inside])
                hit &= ~inside  # what the model itself does not confirm is no hit
            rays.learn(hit)
            if not robust.all():
                at = at[robust]
                rays.keep_(robust)


class Rays:
    """One ray per image, `signs` (M, D), which leaves the class within the radius `best` (M,); which to ask about next.

    Each image is at a place of its own: it tries a flip at the radius `best` (`trying`), or bisects between `low` and
    `best` along a ray that hit. A bisection asks at eps first: a hit there is all that is wanted.
    """

    def __init__(self, x: Tensor, eps: float) -> None:
        self.x, self.eps = x, eps
        self.signs = torch.ones_like(x.flatten(1), dtype=torch.bool)
        self.best = torch.ones_like(x[:, 0, 0, 0])  # anything in [0, 1] is within reach
        self.low, self.radius = self.best.clone(), self.best.clone()
        self.trying = torch.ones_like(self.best, dtype=torch.bool)
        # A block before the first, with nothing in it: the ray to the white image is tried as it is.
        self.level = torch.full_like(self.best, -1, dtype=torch.int64)
        self.start = torch.full_like(self.level, self.signs.shape[1])

    def size(self) -> Tensor:
        """The entries (M,) of a block: 2^level of them cover the image."""
        blocks = 2 ** self.level.clamp_min(0)
        return (self.signs.shape[1] + blocks - 1) // blocks

    def flipped(self) -> Tensor:
        """The signs (M, D) with the current block flipped."""
        entry = torch.arange(self.signs.shape[1], device=self.signs.device)
        first = self.start[:, None]
        return self.signs ^ ((entry >= first) & (entry < first + self.size()[:, None]))

    def points(self) -> Tensor:
        """The points (M, C, H, W) to ask about."""
        signs = torch.where(self.trying[:, None], self.flipped(), self.signs)
        radius = self.radius[:, None]
        return (self.x + torch.where(signs, radius, -radius).view(self.x.shape)).clamp(0.0, 1.0)

    def learn(self, hit: Tensor) -> None:
        """Move on, given which of the points (M,) are of another class."""
        kept = self.trying & hit
        self.signs = torch.where(kept[:, None], self.flipped(), self.signs)
        self.best = torch.where(hit, self.radius, self.best)
        self.low = torch.where(hit, self.low, self.radius)
        self.trying = ~kept & (self.trying | (self.best - self.low <= TOLERANCE * self.best))
        self.radius = torch.where(self.trying, self.best, (self.low + self.best) / 2)
        self.radius[kept] = self.eps
        self._next_block_(self.trying)

    def _next_block_(self, rows: Tensor) -> None:
        """Go on to the next block where `rows` (M,) is true: after the last of a level to the first of the next."""
        width = self.signs.shape[1]
        self.start = torch.where(rows, self.start + self.size(), self.start)
        over = self.start >= width
        finest = (width - 1).bit_length()  # where blocks have one entry; it is repeated
        self.level = torch.where(rows & over, (self.level + 1).clamp_max(finest), self.level)
        self.start = torch.where(rows & over, 0, self.start)

    def keep_(self, rows: Tensor) -> None:
        """Drop the images where `rows` (M,) is false."""
        for name in ("x", "signs", "best", "low", "radius", "trying", "level", "start"):
            setattr(self, name, getattr(self, name)[rows])
