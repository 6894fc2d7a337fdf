"""Sound lines below and above functions of one number on an interval, and the same for max pooling.

A function is known by its knots: between two of them it is linear, up to `slack`. So a line of any slope whose offset
is the least of f(p) - slope * p over the knots and the two ends, less the slack, lies below it. At a jump there are
knots on both sides, JUMP apart, so that lines hold on either side and in between.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lipforge.forge import Forge, MeanCentred, Step

JUMP = 1e-6
"""Half the relative distance of the two knots at a jump: more than float32 rounds a threshold by."""
NARROW = 1e-3
"""Points nearer than this share of the box give no slope: it would be steep, and of no use."""
MAIN = 7
"""Points that slopes are taken from: the two ends, the knots of two jumps, and 0."""
CELLS = 64
"""Pieces into which the inside of a smooth mask is cut; its slack is its steepest slope times half a piece."""
STABLE = 1e-9
"""A box is stable where the lines below and above are nearer than this, as a share of the function's values."""


@dataclass(frozen=True)
class Lines:
    """`slope * x + offset` below and above, each (N, ...)."""

    low_slope: Tensor
    low_offset: Tensor
    high_slope: Tensor
    high_offset: Tensor

    def at(self, images: Tensor | slice) -> "Lines":
        return Lines(*(part[images] for part in vars(self).values()))


@dataclass(frozen=True)
class Curve:
    """A function of one number, linear between its `knots` (J, ...) up to `slack`, None for none, but for jumps between
    each two of `jumps` (2 per jump, ...). `is_relu`: a mask behind it is joined with it to one function."""

    apply: Callable[[Tensor], Tensor]
    knots: Tensor
    jumps: Tensor | None = None
    slack: Tensor | None = None
    is_relu: bool = False

    def points(self, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
        """Points (P, N, ...) whose hull holds the function between `low` and `high`, but for the slack, and values."""
        parts = [part for part in (self.jumps, self.knots) if part is not None]
        inside = [torch.minimum(torch.maximum(_batched(part, low), low), high) for part in parts]
        points = torch.cat([low[None], high[None], *inside])
        values = self.apply(points)
        if self.jumps is None:
            return points, values
        # Rounding decides where between its two knots the function jumps: each may have the value of its neighbour.
        jumps = slice(2, 2 + len(self.jumps))
        swapped = torch.unflatten(values[jumps], 0, (-1, 2)).flip(1).flatten(0, 1)
        return torch.cat([points, points[jumps]]), torch.cat([values, swapped])

    def interval(self, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
        """The least and the largest value between `low` and `high`."""
        _, values = self.points(low, high)
        slack = 0 if self.slack is None else self.slack
        return values.amin(0) - slack, values.amax(0) + slack

    def lines(self, low: Tensor, high: Tensor) -> Lines:
        """The lines that are tightest in the middle, among those through two of the ends and main knots."""
        points, values = self.points(low, high)
        middle, narrow = (low + high) / 2, NARROW * (high - low)
        best: list[Tensor] = []
        for i, j in combinations(range(min(len(points), MAIN)), 2):
            width = points[j] - points[i]
            slope = torch.where(width.abs() > narrow, (values[j] - values[i]) / width, 0.0)
            low_offset, high_offset = self.offsets(points, values, slope)
            if not best:
                best = [slope, low_offset, slope, high_offset]
                continue
            below = slope * middle + low_offset > best[0] * middle + best[1]
            above = slope * middle + high_offset < best[2] * middle + best[3]
            best = [
                torch.where(better, new, old)
                for better, new, old in zip(
                    (below, below, above, above), (slope, low_offset, slope, high_offset), best, strict=True
                )
            ]
        return Lines(*best)

    def offsets(self, points: Tensor, values: Tensor, slope: Tensor) -> tuple[Tensor, Tensor]:
        """The offsets with which lines of that slope lie below and above the function."""
        rest, slack = values - slope * points, 0 if self.slack is None else self.slack
        return rest.amin(0) - slack, rest.amax(0) + slack

    def unstable(self, low: Tensor, high: Tensor) -> Tensor:
        """Where the function is not a line between `low` and `high`, so that a tighter box would help."""
        lines = self.lines(low, high)
        gap = [(lines.high_slope - lines.low_slope) * end + lines.high_offset - lines.low_offset for end in (low, high)]
        return torch.maximum(*gap) > STABLE * (1 + low.abs() + high.abs())


def _batched(knots: Tensor, low: Tensor) -> Tensor:
    """Knots (J,) or (J, ...) in a shape that broadcasts against values (N, ...)."""
    return knots.view(len(knots), 1, *(tuple(knots.shape[1:]) or (1,) * (low.ndim - 1)))


def mask_curve(forge: Forge, x: Tensor, *, behind_relu: bool) -> Curve:
    """The forged function on activations like x (N, ...), of the number in front of a ReLU if there is one."""
    shape = [1] * (x.ndim - 1)
    if isinstance(forge.threshold, Tensor):
        shape[forge.channel_dim] = -1
    threshold = torch.as_tensor(forge.threshold, dtype=x.dtype, device=x.device).view(shape)
    centre = torch.zeros_like(threshold) if forge.centre is None else forge.centre.to(x).view(shape)
    ends = [centre + sign * threshold for sign in (-1, 1)]
    jumps = [end + sign * JUMP * (end.abs() + threshold) for end in ends for sign in (-1, 1)]
    knots, slack = [torch.zeros_like(threshold)], None
    if not isinstance(forge.mask, Step | MeanCentred):
        knots += [threshold * step for step in torch.linspace(-1, 1, CELLS + 1).tolist()]
        slack = threshold * forge.mask.max_slope * (1.0 if forge.scale is None else forge.scale.abs().max()) / CELLS

    def forged(z: Tensor) -> Tensor:
        return Forge.forward(forge, z.relu() if behind_relu else z)

    return Curve(forged, torch.stack(knots), torch.stack(jumps), slack)


@dataclass(frozen=True)
class MaxPool:
    """Max pooling over windows. The line below is the entry with the largest lower bound; so is the one above where no
    other entry can be larger, and elsewhere it is the largest upper bound."""

    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]

    @staticmethod
    def of(
        kernel: Any, stride: Any = (), padding: Any = (0, 0), dilation: Any = (1, 1), ceil_mode: bool = False
    ) -> Any:
        """From the arguments of the operator; None where windows may end outside of the image."""
        pairs = [
            tuple(part) * 2 if len(part) == 1 else tuple(part) for part in (kernel, stride or kernel, padding, dilation)
        ]
        return None if ceil_mode else MaxPool(*pairs)

    def apply(self, x: Tensor) -> Tensor:
        return F.max_pool2d(x, self.kernel, self.stride, self.padding, self.dilation)

    def interval(self, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
        return self.apply(low), self.apply(high)

    def windows(self, x: Tensor, outside: float = 0.0) -> Tensor:
        """The entries of each window, (N, C, K, positions)."""
        up, left = self.padding
        padded = F.pad(x, (left, left, up, up), value=outside)
        found = F.unfold(padded, self.kernel, dilation=self.dilation, stride=self.stride)
        return found.view(len(x), x.shape[1], -1, found.shape[-1])

    def chosen(self, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Which entry (N, C, K, positions) of each window is the lower line; whether it is exact, and else the upper
        bound, (N, C, positions)."""
        lows, highs = self.windows(low, -torch.inf), self.windows(high, -torch.inf)
        best = torch.zeros_like(lows).scatter_(2, lows.argmax(2, keepdim=True), 1.0)
        others = highs.masked_fill(best > 0, -torch.inf).amax(2)
        return best, others <= lows.amax(2), highs.amax(2)

    def unstable(self, low: Tensor, high: Tensor) -> Tensor:
        """The entries of windows in which more than one may be the largest."""
        best, exact, _ = self.chosen(low, high)
        return self.unfolded(torch.where(exact.unsqueeze(2), 0.0, 1.0).to(best).expand_as(best), low) > 0

    def unfolded(self, a: Tensor, like: Tensor) -> Tensor:
        """Coefficients of windows (R, C, K, positions) added up to those of the entries (R, C, H, W)."""
        rows = like[:1].expand(len(a), *like.shape[1:])
        result: Tensor = torch.func.vjp(self.windows, torch.zeros_like(rows))[1](a)[0]
        return result
