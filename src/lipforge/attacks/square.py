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
from lipforge.attacks.base import Attack, check_least
from lipforge.attacks.losses import margin
from lipforge.attacks.norms import Norm
from lipforge.attacks.state import AttackState
from lipforge.errors import InputError

HALVINGS = (10, 50, 200, 500, 1000, 2000, 4000, 6000, 8000)
DRAWN_AT_ONCE = 64


@dataclass(frozen=True)
class Square(Attack):
    """At most `queries` windows per image and restart, each covering the share `p_init` of the image at first.

    The share is halved after the queries in HALVINGS. These were set for 10,000 queries; as in AutoAttack they stay
    where they are for any number of queries, unless `rescale` stretches them. With `candidates` (a divisor of 64), that
    many queries are asked in one batch and the best of them is kept: as many queries in fewer steps, which is faster on
    few images. A robust image costs queries + 1 forwards per restart, one forward for the clean image, and no backward.
    """

    name: ClassVar[str] = "square"
    queries: int = 5000
    restarts: int = 1
    p_init: float = 0.8
    rescale: bool = False
    candidates: int = 1

    def __post_init__(self) -> None:
        check_least(self, 1, "queries", "restarts", "candidates")
        if DRAWN_AT_ONCE % self.candidates:
            raise InputError(f"candidates must divide {DRAWN_AT_ONCE}, got {self.candidates}: 1, 2, 4, ... or 64")
        if not 0 < self.p_init <= 1:
            raise InputError(f"p_init must lie in (0, 1], got {self.p_init}")

    def attack(self, state: AttackState) -> None:
        for restart in range(self.restarts):
            self._search(state, f"square-{restart}")

    @torch.no_grad()
    def _search(self, state: AttackState, stream: str) -> None:
        at = state.robust()
        if len(at) == 0:
            return
        ids, x = state.ids[at], state.x[at]
        best = start_squares(x, state.norm, state.eps, seed=state.seed, sample_ids=ids, stream=stream)
        logits = state.logits(best, at)
        value = margin(logits, state.y[at])
        rows = state.record(best, at, logits)
        at, best, value = at[rows], best[rows], value[rows]
        for first in range(0, self.queries, self.candidates):
            if len(at) == 0:
                return
            if first % DRAWN_AT_ONCE == 0:
                windows = self._draw(state, at, stream, first)
            numbers = range(first, min(first + self.candidates, self.queries))
            new = torch.cat([windows.changed(best, query % DRAWN_AT_ONCE) for query in numbers])
            asked = at.repeat(len(numbers))
            logits = state.logits(new, asked)
            found, choice = margin(logits, state.y[asked]).reshape(len(numbers), -1).min(dim=0)
            if len(numbers) > 1:
                chosen = choice * len(at) + torch.arange(len(at), device=at.device)
                new, logits = new[chosen], logits[chosen]
            rows = state.record(new, at, logits)
            best = torch.where((found < value)[:, None, None, None], new, best)
            value = torch.minimum(found, value)
            if not rows.all():
                at, best, value, windows = at[rows], best[rows], value[rows], windows.only(rows)

    def _draw(self, state: AttackState, at: Tensor, stream: str, first: int) -> "Windows":
        """The windows of the next DRAWN_AT_ONCE queries: two positions, a turn, and a sign per channel for each."""
        x, norm = state.x[at], state.norm
        channels, height, width = x.shape[1:]
        shape, number = (DRAWN_AT_ONCE, 5 + channels), first // DRAWN_AT_ONCE
        words = rng.bits(state.seed, state.ids[at], stream=f"{stream}-windows", shape=shape, counter=number)
        sides = [self.side(first + query, height, width) for query in range(DRAWN_AT_ONCE)]
        if not norm.box:
            sides = [min(max(side, 3) | 1, height, width) for side in sides]  # an odd window has a middle
        across = torch.tensor(sides, device=x.device)
        extents = (height, width) if norm.box else (height, width, height, width)
        lines = tuple(span(words[:, :, k], across, extent) for k, extent in enumerate(extents))
        signs = (2 * (words[:, :, 5:] >> 31) - 1).to(x.dtype)[..., None, None]
        return Windows(norm, state.eps, sides, x, signs, words[:, :, 4] >> 31 == 1, lines)

    def side(self, query: int, height: int, width: int) -> int:
        """The side of the window in this query, numbered from 0."""
        shown = int(query / self.queries * 10_000) if self.rescale else query
        share = self.p_init / 2 ** sum(shown > halving for halving in HALVINGS)
        return min(max(round(math.sqrt(share * height * width)), 1), height, width)


@dataclass(frozen=True)
class Windows:
    """The windows that the next queries change, drawn together: one row per image, one column per query."""

    norm: Norm
    eps: float
    sides: list[int]
    x: Tensor
    signs: Tensor
    turns: Tensor
    lines: tuple[Tensor, ...]

    def only(self, rows: Tensor) -> "Windows":
        """The windows of the images where `rows` (M,) is true."""
        lines = tuple(line[rows] for line in self.lines)
        return replace(self, x=self.x[rows], signs=self.signs[rows], turns=self.turns[rows], lines=lines)

    def changed(self, best: Tensor, query: int) -> Tensor:
        """`best` with this query's window changed, inside the threat."""
        norm, eps, x = self.norm, self.eps, self.x
        fresh, signs = self._mask(0, query), self.signs[:, query]
        if norm.box:
            return torch.where(fresh, (x + signs * eps).clamp(0.0, 1.0), best)
        emptied, turned = self._mask(2, query), self.turns[:, query]
        change = turn_window(best - x, fresh, emptied, signs, self.sides[query], turned, norm=norm, eps=eps)
        return norm.project(x + change, x, eps)

    def _mask(self, first: int, query: int) -> Tensor:
        """A window per image, as a mask (M, 1, H, W)."""
        rows, columns = self.lines[first][:, query], self.lines[first + 1][:, query]
        return rows[:, None, :, None] & columns[:, None, None, :]


def span(words: Tensor, sides: Tensor, extent: int) -> Tensor:
    """Which of `extent` lines (M, Q, extent) lie in a window of that side (Q,), at a uniform place; 32 bits a word."""
    first = (words * (extent - sides + 1) >> 32)[..., None]
    line = torch.arange(extent, device=words.device)
    return (line >= first) & (line < first + sides[:, None])


def start_squares(x: Tensor, norm: Norm, eps: float, *, seed: int, sample_ids: Tensor, stream: str) -> Tensor:
    """In a box, vertical stripes of +-eps, one sign per column and channel; otherwise a grid of 5 x 5 double bumps.

    Together they have length eps. In a sparse norm each has length 1, and the projection keeps their highest entries.
    """
    channels, height, width = x.shape[1:]
    if norm.box:
        stripes = rng.signs(seed, sample_ids, stream=stream, shape=(channels, 1, width), dtype=x.dtype)
        return norm.project(x + eps * stripes, x, eps)
    side = max(min(height, width) // 5, 1)
    rows, columns = height // side, width // side
    signs = rng.signs(seed, sample_ids, stream=stream, shape=(channels, rows, columns), dtype=x.dtype)
    turns = rng.signs(seed, sample_ids, stream=f"{stream}-turns", shape=(1, rows, columns), dtype=x.dtype) > 0
    tile = double_bump(side, norm, x)
    bumps = torch.where(turns[..., None, None], tile.T, tile) * signs[..., None, None]
    change = torch.zeros_like(x)
    top, left = (height - rows * side) // 2, (width - columns * side) // 2
    tiled = bumps.permute(0, 1, 2, 4, 3, 5).reshape(len(x), channels, rows * side, columns * side)
    change[:, :, top : top + rows * side, left : left + columns * side] = tiled
    return norm.project(x + (change if norm.sparse else _unit(change, norm) * eps), x, eps)


def turn_window(
    change: Tensor, fresh: Tensor, emptied: Tensor, signs: Tensor, side: int, turned: Tensor, *, norm: Norm, eps: float
) -> Tensor:
    """`change` with the window `emptied` set to 0 and its length moved into the window `fresh`; of length eps.

    The masks are (M, 1, H, W). In the fresh window a double bump of random sign is added to the direction that was
    there; per channel it takes the length of both windows and what was left of eps. In a sparse norm it takes as many
    times that as there are channels and is not scaled back: the projection that follows cuts all entries down, which
    drops the small ones.
    """
    power, channels = int(norm.order), change.shape[1]
    left = (eps**power - change.abs().pow(power).sum(dim=(1, 2, 3), keepdim=True)).clamp_min(0.0) / channels
    both = (change * (fresh | emptied)).abs().pow(power).sum(dim=(2, 3), keepdim=True)
    length = (left + both).pow(1 / power) * (channels if norm.sparse else 1)
    tile = double_bump(side, norm, change)
    tiles = _scaled(torch.where(turned[:, None, None, None], tile.T, tile), power)
    new = _scaled(change * fresh, power) + signs * _place(tiles, fresh)
    mixed = torch.where(fresh, _scaled(new, power) * length, torch.where(emptied, 0.0, change))
    return mixed if norm.sparse else _unit(mixed, norm) * eps


def double_bump(side: int, norm: Norm, like: Tensor) -> Tensor:
    """A pattern (side, side) of length 1 in the norm: a bump in the upper half, its negative in the lower half."""
    half = side // 2
    pattern = torch.cat([_bump(half, side, norm), -_bump(side - half, side, norm)])
    return _unit(pattern[None, None], norm)[0, 0].to(like)


def _bump(height: int, width: int, norm: Norm) -> Tensor:
    """Concentric squares around the middle, the k-th of height 1 / k^2 (sparse: 1 / k^4), added up; of length 1."""
    if height == 0:
        return torch.zeros(0, width)
    rings = torch.arange(1.0, max(height, width) // 2 + 2) ** (-4 if norm.sparse else -2)
    covered = rings.flip(0).cumsum(0).flip(0)  # an entry at distance k is covered by the squares from the k-th on
    rows = (torch.arange(height) - height // 2).abs()[:, None]
    columns = (torch.arange(width) - width // 2).abs()[None, :]
    return _unit(covered[torch.maximum(rows, columns)][None, None], norm)[0, 0]


def _place(tiles: Tensor, mask: Tensor) -> Tensor:
    """The tiles (M, 1, s, s) where the windows (M, 1, H, W) are, 0 elsewhere; entries keep their row-major order."""
    placed = torch.zeros(mask.shape, dtype=tiles.dtype, device=tiles.device)
    placed[mask] = tiles.expand(len(mask), *tiles.shape[1:]).flatten()
    return placed


def _scaled(part: Tensor, power: int) -> Tensor:
    """Each channel at length 1, or 0 where it is 0."""
    return part / part.abs().pow(power).sum(dim=(2, 3), keepdim=True).pow(1 / power).clamp_min(1e-12)


def _unit(change: Tensor, norm: Norm) -> Tensor:
    return change / norm.distance(change)[:, None, None, None].clamp_min(1e-12)
