"""Square, a random search that asks for logits only (Andriushchenko et al. 2020): the check on masked gradients.

Each query changes one square window of the image at random and keeps the change if the margin falls. The positions
are drawn for each image by itself, so they do not depend on the batch, and may touch every edge of the image.
"""

import math
from dataclasses import dataclass
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
        trial.clean_logits()
        for restart in range(self.restarts):
            self._search(trial, f"square-{restart}")

    @torch.no_grad()
    def _search(self, trial: Trial, stream: str) -> None:
        at = trial.standing()
        if len(at) == 0:
            return
        best = start_squares(trial.x[at], trial.threat, seed=trial.seed, sample_ids=trial.ids[at], stream=stream)
        logits = trial.logits(best, at)
        rows, value = trial.record(best, at, logits), margin(logits, trial.y[at])
        at, best, value = at[rows], best[rows], value[rows]
        words = torch.empty(0)
        for query in range(self.queries):
            if len(at) == 0:
                return
            number, offset = divmod(query, DRAWN_AT_ONCE)
            if offset == 0:
                words = _words(trial, at, stream=stream, counter=number)
            new = project(self._change(trial, at, best, words[:, offset], query), trial.x[at], trial.threat)
            logits = trial.logits(new, at)
            rows, found = trial.record(new, at, logits), margin(logits, trial.y[at])
            best = torch.where((found > value)[:, None, None, None], new, best)
            value = torch.maximum(found, value)
            if not rows.all():
                at, best, value, words = at[rows], best[rows], value[rows], words[rows]
        trial.keep(best, at)

    def _change(self, trial: Trial, at: Tensor, best: Tensor, words: Tensor, query: int) -> Tensor:
        """`best` with one random window changed."""
        height, width = best.shape[2:]
        side = self.side(query, height, width)
        x, threat = trial.x[at], trial.threat
        signs = (2 * (words[:, 5:] >> 31) - 1).to(best.dtype)[:, :, None, None]
        if threat.norm == "linf":
            mask = window(words[:, 0], words[:, 1], side, height, width)
            return torch.where(mask, x + threat.eps * signs, best)
        side = min(max(side, 3) | 1, height, width)  # an odd window has a middle
        fresh, emptied = (window(words[:, k], words[:, k + 1], side, height, width) for k in (0, 2))
        change = turn_window(best - x, fresh, emptied, signs, side, words[:, 4] >> 31 == 1, threat.eps)
        return x + change

    def side(self, query: int, height: int, width: int) -> int:
        """The side of the window in this query, numbered from 0."""
        shown = int(query / self.queries * 10_000) if self.rescale else query
        share = self.share / 2 ** sum(shown > halving for halving in HALVINGS)
        return min(max(round(math.sqrt(share * height * width)), 1), height, width)


def window(row_word: Tensor, column_word: Tensor, side: int, height: int, width: int) -> Tensor:
    """A mask (M, 1, H, W) of one window per image, at a uniform position; the words have 32 random bits."""
    inside = []
    for word, extent in ((row_word, height), (column_word, width)):
        first = (word * (extent - side + 1) >> 32)[:, None]
        line = torch.arange(extent, device=word.device)[None, :]
        inside.append((line >= first) & (line < first + side))
    return inside[0][:, None, :, None] & inside[1][:, None, None, :]


def _words(trial: Trial, at: Tensor, *, stream: str, counter: int) -> Tensor:
    """Random bits for the next queries: two positions, one turn, and a sign per channel for each."""
    shape = (DRAWN_AT_ONCE, 5 + trial.x.shape[1])
    return rng.bits(trial.seed, trial.ids[at], stream=f"{stream}-windows", shape=shape, counter=counter)
