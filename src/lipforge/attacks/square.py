"""Square, a random search that asks for logits only (Andriushchenko et al. 2020): the check on masked gradients.

Each query changes one square window of the image at random and keeps the change if the margin falls. The positions
are drawn for each image by itself, so they do not depend on the batch, and may touch every edge of the image.
"""

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from lipforge import rng
from lipforge.attacks.base import Attack
from lipforge.attacks.losses import margin
from lipforge.attacks.norms import project
from lipforge.attacks.squares import start_squares, turn_window
from lipforge.attacks.trial import Trial
from lipforge.errors import InputError
from lipforge.types import Threat

HALVINGS = (10, 50, 200, 500, 1000, 2000, 4000, 6000, 8000)
DRAWN_AT_ONCE = 64


@dataclass(frozen=True)
class Square(Attack):
    """At most `queries` windows per image and restart, each covering the share `share` of the image at first.

    The share is halved after the queries in HALVINGS. These were set for 10,000 queries; as in AutoAttack they stay
    where they are for any number of queries, unless `rescale` stretches them. An image that stands costs queries + 1
    forwards per restart, one forward for the clean image, and no backward.
    """

    name: ClassVar[str] = "square"
    queries: int = 5000
    restarts: int = 1
    share: float = 0.8
    rescale: bool = False

    def __post_init__(self) -> None:
        if self.queries < 1 or self.restarts < 1:
            raise InputError(f"queries and restarts must be at least 1, got {self.queries} and {self.restarts}")
        if not 0 < self.share <= 1:
            raise InputError(f"share must lie in (0, 1], got {self.share}")

    def attack(self, trial: Trial) -> None:
        """Search from each start until nothing stands."""
        for restart in range(self.restarts):
            self._search(trial, f"square-{restart}")

    @torch.no_grad()
    def _search(self, trial: Trial, stream: str) -> None:
        at, threat = trial.standing(), trial.threat
        if len(at) == 0:
            return
        best = start_squares(trial.x[at], threat, seed=trial.seed, sample_ids=trial.ids[at], stream=stream)
        logits = trial.logits(best, at)
        value = margin(logits, trial.y[at])
        rows = trial.record(best, at, logits)
        at, best, value = at[rows], best[rows], value[rows]
        for first in range(0, self.queries, DRAWN_AT_ONCE):
            if len(at) == 0:
                return
            windows = self._draw(trial, at, stream, first)
            for query in range(min(DRAWN_AT_ONCE, self.queries - first)):
                new = windows.changed(best, query)
                logits = trial.logits(new, at)
                found = margin(logits, trial.y[at])
                rows = trial.record(new, at, logits)
                best = torch.where((found > value)[:, None, None, None], new, best)
                value = torch.maximum(found, value)
                if not rows.all():
                    at, best, value, windows = at[rows], best[rows], value[rows], windows.only(rows)
                    if len(at) == 0:
                        return

    def _draw(self, trial: Trial, at: Tensor, stream: str, first: int) -> "Windows":
        """The windows of the next DRAWN_AT_ONCE queries: two positions, a turn, and a sign per channel for each."""
        x, threat = trial.x[at], trial.threat
        channels, height, width = x.shape[1:]
        shape = (DRAWN_AT_ONCE, 5 + channels)
        number = first // DRAWN_AT_ONCE
        words = rng.bits(trial.seed, trial.ids[at], stream=f"{stream}-windows", shape=shape, counter=number)
        sides = [self.side(first + query, height, width) for query in range(DRAWN_AT_ONCE)]
        if threat.norm != "linf":
            sides = [min(max(side, 3) | 1, height, width) for side in sides]  # an odd window has a middle
        across = torch.tensor(sides, device=x.device)
        lines = [
            span(words[:, :, k], across, extent)
            for k, extent in enumerate((height, width, height, width)[: 2 if threat.norm == "linf" else 4])
        ]
        low, high = (x - threat.eps).clamp_min(0.0), (x + threat.eps).clamp_max(1.0)
        signs = (words[:, :, 5:] >> 31 == 1)[..., None, None]
        return Windows(threat, sides, x, low, high, signs, words[:, :, 4] >> 31 == 1, tuple(lines))

    def side(self, query: int, height: int, width: int) -> int:
        """The side of the window in this query, numbered from 0."""
        shown = int(query / self.queries * 10_000) if self.rescale else query
        share = self.share / 2 ** sum(shown > halving for halving in HALVINGS)
        return min(max(round(math.sqrt(share * height * width)), 1), height, width)


@dataclass(frozen=True)
class Windows:
    """The windows that the next queries change, drawn together: one row per image, one column per query."""

    threat: Threat
    sides: list[int]
    x: Tensor
    low: Tensor
    high: Tensor
    signs: Tensor
    turns: Tensor
    lines: tuple[Tensor, ...]

    def only(self, rows: Tensor) -> "Windows":
        """The windows of the images where `rows` (M,) is true."""
        return replace(
            self,
            x=self.x[rows],
            low=self.low[rows],
            high=self.high[rows],
            signs=self.signs[rows],
            turns=self.turns[rows],
            lines=tuple(line[rows] for line in self.lines),
        )

    def changed(self, best: Tensor, query: int) -> Tensor:
        """`best` with this query's window changed, inside the threat."""
        fresh, sign = self._mask(0, query), self.signs[:, query]
        if self.threat.norm == "linf":
            return torch.where(fresh, torch.where(sign, self.high, self.low), best)
        emptied, signs = self._mask(2, query), torch.where(sign, 1.0, -1.0).to(best.dtype)
        turned = self.turns[:, query]
        change = turn_window(best - self.x, fresh, emptied, signs, self.sides[query], turned, self.threat)
        return project(self.x + change, self.x, self.threat)

    def _mask(self, first: int, query: int) -> Tensor:
        """A window per image, as a mask (M, 1, H, W)."""
        rows, columns = self.lines[first][:, query], self.lines[first + 1][:, query]
        return rows[:, None, :, None] & columns[:, None, None, :]


def span(words: Tensor, sides: Tensor, extent: int) -> Tensor:
    """Which of `extent` lines (M, Q, extent) lie in a window of that side (Q,), at a uniform place; 32 bits a word."""
    first = (words * (extent - sides + 1) >> 32)[..., None]
    line = torch.arange(extent, device=words.device)
    return (line >= first) & (line < first + sides[:, None])
