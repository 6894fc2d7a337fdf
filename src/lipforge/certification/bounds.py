"""Lower bounds on margins over a ball: intervals forward (IBP), linear bounds backward (CROWN).

Everything runs in float64, and no rounding mode is set. Instead eps is enlarged as for attacks, every box is widened by
ROUNDING times the largest magnitude in its layer, and a margin counts only above ROUNDING times the largest logit. That
is far more than float64 rounds by, and about what the model itself rounds by in float32.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from lipforge.attacks import norms
from lipforge.certification.network import Affine, Network, Node
from lipforge.certification.relaxations import Curve, Lines, MaxPool
from lipforge.types import Norm, Threat

ROUNDING = 1e-6
MOST_ELEMENTS = 2**19
"""Coefficients in memory at a time, of the widest layer: 4 MB, which caches hold."""

Step = Callable[[int], None]
Owner = Tensor | slice
"""Which image each row of coefficients is about: one index per row, or the slice of one image for all rows."""


@dataclass(frozen=True)
class Region:
    """The ball around images x (N, C, H, W) cut with [0, 1], and the smallest box that holds it."""

    x: Tensor
    low: Tensor
    high: Tensor
    norm: Norm
    eps: float

    @staticmethod
    def of(x: Tensor, threat: Threat) -> "Region":
        x, eps = x.double(), threat.eps + norms.of(threat).slack(threat.eps, x.dtype)
        return Region(x, (x - eps).clamp(0, 1), (x + eps).clamp(0, 1), threat.norm, eps)

    def least(self, a: Tensor, owner: Owner) -> Tensor:
        """The least value (R,) of a * x over the region of each row's image; for l2 a lower bound of it."""
        x, low, high = self.x[owner], self.low[owner], self.high[owner]
        box = _dot(a, low) + _dot(a.clamp(max=0), high - low)
        if self.norm == "linf":
            return box
        if self.norm == "l2":
            return torch.maximum(box, _dot(a, x) - self.eps * a.flatten(1).norm(dim=1))
        # l1: the budget goes to the steepest entries first, each as far as [0, 1] lets it.
        steep, order = a.flatten(1).abs().sort(dim=1, descending=True)
        room = torch.where(a > 0, x - low, high - x).flatten(1).gather(1, order)
        before = room.cumsum(1) - room
        spent = torch.minimum(room, (self.eps - before).clamp(min=0))
        return _dot(a, x) - (steep * spent).sum(1)


@dataclass
class Bounds:
    """Boxes and lines of all nodes over a region, made front to back by `bounds_of`."""

    network: Network
    region: Region
    boxes: list[tuple[Tensor, Tensor]]
    lines: dict[int, Lines]
    step: Step

    def lower(self, start: int, a: Tensor, owner: Owner) -> Tensor:
        """Lower bounds (R,) of a * z, z the output of node `start` on the image of each row (CROWN)."""
        pending, total = {start: a}, torch.zeros(len(a), dtype=a.dtype, device=a.device)
        for index in range(start, 0, -1):
            if index in pending:
                node = self.network.nodes[index]
                parts, constant = self._back(index, node, pending.pop(index), owner)
                total = total + constant
                for parent, part in zip(node.parents, parts, strict=True):
                    pending[parent] = pending[parent] + part if parent in pending else part
        return total + self.region.least(pending[0], owner) if 0 in pending else total

    def _back(self, index: int, node: Node, a: Tensor, owner: Owner) -> tuple[tuple[Tensor, ...], Tensor]:
        """Coefficients of the parents, and the constant (R,): the sum over them is a lower bound of a * z."""
        if isinstance(node.op, Affine):
            return node.op.transpose(a), _dot(a, node.op.offset)
        down = a.clamp(max=0)
        if isinstance(node.op, Curve):
            lines = self.lines[index].at(owner)
            part = torch.addcmul(a * lines.low_slope, down, lines.high_slope - lines.low_slope)
            return (part,), _dot(a, lines.low_offset) + _dot(down, lines.high_offset - lines.low_offset)
        assert isinstance(node.op, MaxPool)
        low, high = self.boxes[node.parents[0]]
        best, exact, largest = (part[owner] for part in node.op.chosen(low, high))
        part = torch.where(exact, a.flatten(2), (a - down).flatten(2)).unsqueeze(2)
        return (node.op.unfolded(best * part, low),), _dot(down.flatten(2), torch.where(exact, 0.0, largest))

    def tighten(self, index: int, sample: Tensor) -> None:
        """Bound the unstable outputs of a node by CROWN where that is tighter than the box: from below where `sample`,
        a value of each, is positive, else from above; and where that does not make it stable, on its other side."""
        positive = sample > 0
        for below in (positive, ~positive):
            unstable = self.unstable(index)
            for image in range(len(sample)):
                entries = unstable[image].nonzero()
                for part in torch.split(entries, self.rows(index)) if len(entries) else ():
                    self._tighten_rows(index, image, part, below[image])
                    self.step(len(part) * self.depth(index))

    def _tighten_rows(self, index: int, image: int, entries: Tensor, below: Tensor) -> None:
        low, high = (side[image] for side in self.boxes[index])
        at = tuple(entries.T)
        sign = torch.where(below[at], 1.0, -1.0).to(low)
        a = torch.zeros(len(entries), *low.shape, dtype=low.dtype, device=low.device)
        a[(torch.arange(len(entries), device=low.device), *at)] = sign
        found = self.lower(index, a, slice(image, image + 1))
        low[at] = torch.where(sign > 0, torch.maximum(low[at], found), low[at])
        high[at] = torch.where(sign > 0, high[at], torch.minimum(high[at], -found))

    def unstable(self, index: int) -> Tensor:
        """Which outputs (N, ...) of a node make a function behind it bend, so that a tighter box would help."""
        low, high = self.boxes[index]
        return torch.stack([op.unstable(low, high) for op in self.network.consumers(index)]).any(0)

    def crown_work(self) -> Tensor:
        """The most work (N,) that `bounds_of` with `full` takes for each image, in the unit of `step`: CROWN from both
        sides for all that is unstable by these boxes."""
        tightened = [index for index in range(len(self.network.nodes)) if self.network.is_tightened(index)]
        work = [2 * self.depth(index) * self.unstable(index).flatten(1).sum(1) for index in tightened]
        return torch.stack(work).sum(0) if work else torch.zeros(len(self.region.x), device=self.region.x.device)

    def depth(self, index: int) -> int:
        """The numbers that a row of coefficients goes through from a node back to the image."""
        return sum(torch.Size(node.shape).numel() for node in self.network.nodes[: index + 1])

    def rows(self, index: int) -> int:
        """Rows whose coefficients are in memory at a time, back from that node."""
        widest = max(torch.Size(node.shape).numel() for node in self.network.nodes[: index + 1])
        return max(1, MOST_ELEMENTS // widest)


def bounds_of(network: Network, region: Region, *, full: bool, step: Step = lambda work: None) -> Bounds:
    """Boxes and lines of every node: intervals alone, or with `full` each box tightened by CROWN on the way, where
    `step` is called with the work of each part, which `crown_work` limits."""
    bounds, samples = Bounds(network, region, [(region.low, region.high)], {}, step), network.values(region.x)
    for index, node in enumerate(network.nodes[1:], start=1):
        boxes = [bounds.boxes[parent] for parent in node.parents]
        if isinstance(node.op, Affine):
            centre = node.op.apply(*((low + high) / 2 for low, high in boxes))
            radius = node.op.radius(*((high - low) / 2 for low, high in boxes))
            box = centre - radius, centre + radius
        else:
            assert node.op is not None
            box = node.op.interval(*boxes[0])
        bounds.boxes.append(_widened(*box))
        if isinstance(node.op, Curve):
            bounds.lines[index] = node.op.lines(*boxes[0])
        if full and network.is_tightened(index):
            bounds.tighten(index, samples[index])
            bounds.boxes[index] = _widened(*bounds.boxes[index])
    return bounds


def margins(bounds: Bounds, y: Tensor) -> Tensor:
    """Lower bounds (N, K) of logit y minus each logit over the region; infinite for the label itself."""
    low, high = bounds.boxes[-1]
    count, classes = low.shape
    rows = torch.eye(classes, dtype=low.dtype, device=low.device)
    a = rows[y].unsqueeze(1) - rows
    owner = torch.arange(count, device=low.device).repeat_interleave(classes)
    end = len(bounds.network.nodes) - 1
    split = (torch.split(each, bounds.rows(end)) for each in (a.flatten(0, 1), owner))
    parts = [bounds.lower(end, part, own) for part, own in zip(*split, strict=True)]
    by_boxes = low.gather(1, y.unsqueeze(1)) - high
    found = torch.maximum(torch.cat(parts).view(count, classes), by_boxes)
    largest = torch.maximum(low.abs(), high.abs()).amax(1, keepdim=True)
    return (found - ROUNDING * largest).scatter(1, y.unsqueeze(1), torch.inf)


def _widened(low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """The box with room for rounding, as a share of the largest magnitude in the layer."""
    room = ROUNDING * torch.maximum(low.abs(), high.abs()).flatten(1).amax(1).view(-1, *[1] * (low.ndim - 1))
    return low - room, high + room


def _dot(a: Tensor, values: Tensor) -> Tensor:
    """The sums (R,) of a * values, which are (R, ...) or the same (1, ...) for all rows."""
    a, values = a.flatten(1), values.flatten(1)
    return a @ values[0] if len(values) == 1 else (a * values).sum(1)
