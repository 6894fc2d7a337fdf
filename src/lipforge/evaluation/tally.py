"""What became of one shard's images on one classifier, while a contest goes on."""

import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lipforge.attacks import notes_and_square
from lipforge.attacks.losses import margin
from lipforge.attacks.queries import logits_of
from lipforge.attacks.result import AttackResult
from lipforge.attacks.trial import MISCLASSIFIED, ROBUST
from lipforge.batching import ImageData, check_images
from lipforge.evaluation.results import overlay_notes
from lipforge.types import Classifier

FOUND = "found on "
"""How the outcome of an image begins that fell to a point found for another classifier."""


class Shard(NamedTuple):
    """Images (N, C, H, W), labels (N,) and their positions (N,) in the data."""

    x: Tensor
    y: Tensor
    ids: Tensor

    def among(self, images: Collection[int]) -> Tensor:
        """Which of the images (N,) are at these positions of the data."""
        return torch.tensor([position in images for position in self.ids.tolist()], device=self.ids.device)


class Found(NamedTuple):
    """Points worth trying on other classifiers, for the images at these positions of the shard."""

    label: str
    at: Tensor
    points: Tensor


class Tally:
    """Who stands, what fooled the others, and what it cost; the clean images are looked at, unless an outcome is known.

    `due` images are still to be attacked in full, of these the `drawn` ones by chance; `spared` ones are not.
    """

    def __init__(self, label: str, classifier: Classifier, shard: Shard, outcome: list[str] | None = None) -> None:
        started = time.perf_counter()
        self.label, self.classifier, self.shard = label, classifier, shard
        self.points = shard.x.clone()
        self.forwards = self.backwards = self.attacked = self.tried = self.pushed = self.checked = self.failed = 0
        self.square = 0
        self.notes: list[list[str]] = []
        self.clean_gap = torch.full_like(shard.y, torch.nan, dtype=shard.x.dtype)
        if outcome is None:
            logits = self._logits(shard.x, shard.ids)
            self.clean_gap = -margin(logits, shard.y)
            outcome = [ROBUST if right else MISCLASSIFIED for right in (logits.argmax(dim=1) == shard.y).tolist()]
        self.outcome = outcome
        self.stands = torch.tensor([word == ROBUST for word in outcome], device=shard.y.device)
        self.due, self.drawn, self.spared, self.own = (torch.zeros_like(self.stands) for _ in range(4))
        self.closest = torch.full_like(self.clean_gap, -torch.inf)
        self.seconds = time.perf_counter() - started

    @property
    def stood(self) -> Tensor:
        """Which images (N,) no attack on this classifier itself has fooled, and which were right at all."""
        return torch.tensor([word != MISCLASSIFIED for word in self.outcome], device=self.own.device) & ~self.own

    def attempt(self, found: Found) -> Tensor:
        """Try points on the images that stand; the gap (N,) at the points, infinite where none was tried."""
        mine = found.label == self.label
        gap = torch.full_like(self.clean_gap, torch.inf)
        kept = self.stands[found.at]
        at, points = found.at[kept], found.points[kept]
        if len(at) == 0:
            return gap
        logits = self._logits(points, self.shard.ids[at])
        gap[at] = -margin(logits, self.shard.y[at])
        fell = logits.argmax(dim=1) != self.shard.y[at]
        self._fall(at[fell], points[fell], ["push" if mine else f"{FOUND}{found.label}"] * int(fell.sum()))
        if mine:
            stronger = -gap[at] > self.closest[at]
            self.points[at[stronger]] = points[stronger]
            self.closest[at] = torch.maximum(self.closest[at], -gap[at])
            self.own[at[fell]] = True
            self.pushed += int(fell.sum())
        else:
            self.tried += int(fell.sum())
        return gap

    def gap_at(self, points: Tensor) -> Tensor:
        """z_y minus the largest other logit (N,) at one point per image."""
        return -margin(self._logits(points, self.shard.ids), self.shard.y)

    def take(self, at: Tensor, result: AttackResult, *, confirm: bool) -> None:
        """Enter what an attack did to these images; `confirm` its successes here, if it was run on another view."""
        self.forwards += int(result.forwards.sum())
        self.backwards += int(result.backwards.sum())
        notes, square = notes_and_square(result)
        self.notes.append(notes)
        self.square += square
        stronger = result.closest > self.closest[at]
        self.points[at[stronger]] = result.images[stronger]
        self.closest[at] = torch.maximum(self.closest[at], result.closest.to(self.closest))
        fell = result.fooled.clone()
        if confirm and fell.any():
            logits = self._logits(result.images[fell], self.shard.ids[at[fell]])
            fell[fell.clone()] = logits.argmax(dim=1) != self.shard.y[at[fell]]
        words = [word for word, fallen in zip(result.outcome, fell.tolist(), strict=True) if fallen]
        self.own[at[fell]] = True
        self._fall(at[fell], result.images[fell], words)

    def found(self) -> Found:
        """The points that an attack on this classifier itself found."""
        at = self.own.nonzero().squeeze(1)
        return Found(self.label, at, self.points[at])

    def fresh(self) -> "Tally":
        """A copy whose passes start from 0, for a contest that comes later."""
        copy = object.__new__(Tally)
        copy.__dict__.update(vars(self), points=self.points.clone(), stands=self.stands.clone())
        copy.outcome, copy.notes = list(self.outcome), list(self.notes)
        copy.forwards = copy.backwards = copy.tried = 0
        copy.seconds = 0.0
        return copy

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Count the time of what happens inside."""
        started = time.perf_counter()
        yield
        self.seconds += time.perf_counter() - started

    def record(self) -> dict[str, Any]:
        """All of it, ready for JSON."""
        counts = ("attacked", "tried", "pushed", "checked", "failed", "square", "forwards", "backwards", "seconds")
        left = {"due": self.due, "drawn": self.drawn, "spared": self.spared}
        return {
            "outcome": self.outcome,
            **{name: self.shard.ids[rows & self.stands].tolist() for name, rows in left.items()},
            "notes": list(overlay_notes(self.notes, self.attacked)),
            **{name: getattr(self, name) for name in counts},
        }

    def _fall(self, at: Tensor, points: Tensor, words: list[str]) -> None:
        self.stands[at] = False
        self.points[at] = points
        for position, word in zip(at.tolist(), words, strict=True):
            self.outcome[position] = word

    @torch.no_grad()
    def _logits(self, x: Tensor, ids: Tensor) -> Tensor:
        self.forwards += len(x)
        return logits_of(self.classifier, x, ids)


def load(data: ImageData, images: Sequence[int], device: torch.device | None) -> Shard:
    """These images and labels, checked, on the device, with their positions as ids."""
    x, y = data.batch(list(images))
    check_images(x, first=images[0])
    x, y = (tensor if device is None else tensor.to(device) for tensor in (x, y))
    return Shard(x, y, torch.tensor(list(images), device=x.device))
