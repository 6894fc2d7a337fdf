"""Accuracy under common corruptions: each corruption at each severity, their mean, and two classifiers compared."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from lipforge.errors import InputError
from lipforge.records import Share
from lipforge.results.change import Change
from lipforge.statistics import Comparison, check_same, mcnemar, mean_interval, paired, wilson
from lipforge.text import percent, points_text, share_text

ALEXNET_ERRORS: Mapping[str, float] = {
    "gaussian_noise": 0.886428,
    "shot_noise": 0.894468,
    "impulse_noise": 0.922640,
    "defocus_blur": 0.819880,
    "glass_blur": 0.826268,
    "motion_blur": 0.785948,
    "zoom_blur": 0.798360,
    "snow": 0.866816,
    "frost": 0.826572,
    "fog": 0.819324,
    "brightness": 0.564592,
    "contrast": 0.853204,
    "elastic_transform": 0.646056,
    "pixelate": 0.717840,
    "jpeg_compression": 0.606500,
}
"""AlexNet's mean errors over the five severities of ImageNet-C, by which the published mCE divides (Hendrycks and
Dietterich 2019)."""


@dataclass(frozen=True)
class CorruptionCell:
    """One corruption at one severity: how many images are classified correctly, with Wilson's 95 % interval. `right`
    has a 1 for each image that is, in order, and a 0 for each that is not."""

    corruption: str
    severity: int
    correct: int
    accuracy: Share
    interval: tuple[Share, Share]
    right: str


@dataclass(frozen=True)
class CorruptResult:
    """Accuracy of one classifier under common corruptions.

    `mean_accuracy` is the mean over all cells, with Student's 95 % interval over the images: each image is in every
    cell, so the cells are not independent. 1 - mean_accuracy is the mean error that is reported for CIFAR-10-C. `mce`
    is the mean corruption error of ImageNet-C, relative to AlexNet's, and None unless its own files were read with all
    corruptions and severities. `source` says whether the images were read or made, and `notes` which of those that
    were made are not the published ones.
    """

    kind: ClassVar[str] = "corrupt"
    label: str
    model: str
    data: str
    source: str
    seed: int
    count: int
    clean_accuracy: Share
    clean_interval: tuple[Share, Share]
    clean_right: str
    corruptions: tuple[str, ...]
    severities: tuple[int, ...]
    cells: tuple[CorruptionCell, ...]
    mean_accuracy: Share
    mean_interval: tuple[Share, Share]
    mce: float | None
    forwards: int
    seconds: float
    notes: tuple[str, ...] = ()
    data_digest: str = ""
    change: Change | None = None

    def of(self, corruption: str) -> list[CorruptionCell]:
        """The cells of a corruption, by severity."""
        if corruption not in self.corruptions:
            raise InputError(f"corruption must be among {', '.join(self.corruptions)}, got {corruption!r}")
        return [cell for cell in self.cells if cell.corruption == corruption]

    def accuracy_of(self, corruption: str) -> tuple[float, tuple[float, float]]:
        """The mean over the severities of a corruption, with Student's 95 % interval over the images."""
        return _mean(self.of(corruption))

    def at(self, severity: int) -> tuple[float, tuple[float, float]]:
        """The mean over all corruptions at a severity, with Student's 95 % interval over the images."""
        if severity not in self.severities:
            raise InputError(f"severity must be among {', '.join(map(str, self.severities))}, got {severity}")
        return _mean([cell for cell in self.cells if cell.severity == severity])

    def __str__(self) -> str:
        mce = "" if self.mce is None else f", mCE {percent(self.mce)}"
        return (
            f"{self.label}: clean {share_text(self.clean_accuracy, self.clean_interval)}, corrupted "
            f"{share_text(self.mean_accuracy, self.mean_interval)}{mce}, {len(self.cells)} cells, n = {self.count}"
        )


@dataclass(frozen=True)
class CorruptionDifference:
    """Candidate minus base under one corruption, over its severities; `gained` and `lost` count images and severities
    together, and the interval is Student's over the images."""

    corruption: str
    base_accuracy: Share
    candidate_accuracy: Share
    difference: float
    interval: tuple[float, float]
    gained: int
    lost: int


@dataclass(frozen=True)
class CorruptComparison:
    """Two classifiers on the same corrupted images, candidate minus base.

    `difference` is that of the means over all cells, with Student's 95 % interval over the images. `better` images are
    classified correctly in more cells by the candidate, `worse` ones in fewer; `p_value` is that of the exact two-sided
    sign test on these two counts. `gained` and `lost` count images and cells together. `relative_error` is the mCE of
    the candidate with the base as the reference: 1 means as many errors, less is better; None if the base makes no
    error under some corruption. `clean` compares the clean images.
    """

    kind: ClassVar[str] = "corrupt_comparison"
    base: str
    candidate: str
    data: str
    source: str
    seed: int
    count: int
    difference: float
    interval: tuple[float, float]
    gained: int
    lost: int
    better: int
    worse: int
    p_value: Share
    relative_error: float | None
    clean: Comparison
    corruptions: tuple[CorruptionDifference, ...]
    severities: tuple[int, ...] = ()

    def __str__(self) -> str:
        return (
            f"{self.candidate} against {self.base}: corrupted {points_text(self.difference, self.interval)} points, "
            f"better on {self.better} images and worse on {self.worse}, p = {self.p_value:.2g}, n = {self.count}"
        )


def corrupt_fields(right: Mapping[tuple[str, int], str], clean: str, *, relative_to_alexnet: bool) -> dict[str, Any]:
    """What follows from which images are right: counts, shares, means and mCE.

    >>> corrupt_fields({("fog", 1): "110", ("fog", 2): "100"}, "111", relative_to_alexnet=False)["mean_accuracy"]
    0.5
    """
    cells = tuple(_cell(*key, word) for key, word in right.items())
    names = tuple(dict.fromkeys(cell.corruption for cell in cells))
    mean, interval = _mean(cells)
    errors = {name: 1 - _mean([cell for cell in cells if cell.corruption == name])[0] for name in names}
    return {
        "count": len(clean),
        "clean_accuracy": clean.count("1") / len(clean),
        "clean_interval": wilson(clean.count("1"), len(clean)),
        "clean_right": clean,
        "corruptions": names,
        "severities": tuple(sorted({cell.severity for cell in cells})),
        "cells": cells,
        "mean_accuracy": mean,
        "mean_interval": interval,
        "mce": mean_corruption_error(errors, ALEXNET_ERRORS) if relative_to_alexnet else None,
    }


def mean_corruption_error(errors: Mapping[str, float], reference: Mapping[str, float]) -> float | None:
    """The mean over the corruptions of the error relative to the reference's; None if the reference makes none.

    >>> mean_corruption_error({"fog": 0.2, "snow": 0.3}, {"fog": 0.4, "snow": 0.3})
    0.75
    """
    if any(reference[name] == 0 for name in errors):
        return None
    return sum(error / reference[name] for name, error in errors.items()) / len(errors)


def compare_corrupted(base: CorruptResult, candidate: CorruptResult) -> CorruptComparison:
    """The paired comparison of two results; data, source, seed, corruptions and severities must be the same."""
    check_same(base, candidate)
    for name in ("source", "corruptions", "severities", "count"):
        first, second = getattr(base, name), getattr(candidate, name)
        if first != second:
            raise InputError(f"base and candidate must have the same {name}, got {first!r} and {second!r}")
    parts = tuple(_difference(name, base.of(name), candidate.of(name)) for name in base.corruptions)
    moved = [b - a for a, b in zip(_shares(base.cells), _shares(candidate.cells), strict=True)]
    better, worse = sum(step > 0 for step in moved), sum(step < 0 for step in moved)
    errors = {part.corruption: 1 - part.candidate_accuracy for part in parts}
    return CorruptComparison(
        base=base.label,
        candidate=candidate.label,
        data=base.data,
        source=base.source,
        seed=base.seed,
        count=base.count,
        difference=sum(moved) / base.count,
        interval=mean_interval(moved, within=(-1.0, 1.0)),
        gained=sum(part.gained for part in parts),
        lost=sum(part.lost for part in parts),
        better=better,
        worse=worse,
        p_value=mcnemar(better, worse),
        severities=base.severities,
        relative_error=mean_corruption_error(errors, {part.corruption: 1 - part.base_accuracy for part in parts}),
        clean=paired(*([mark == "1" for mark in one.clean_right] for one in (base, candidate))),
        corruptions=parts,
    )


def _cell(corruption: str, severity: int, right: str) -> CorruptionCell:
    correct, count = right.count("1"), len(right)
    return CorruptionCell(corruption, severity, correct, correct / count, wilson(correct, count), right)


def _difference(name: str, base: Sequence[CorruptionCell], candidate: Sequence[CorruptionCell]) -> CorruptionDifference:
    first, second = _shares(base), _shares(candidate)
    moved = [b - a for a, b in zip(first, second, strict=True)]
    pairs = [pair for one, other in zip(base, candidate, strict=True)
             for pair in zip(one.right, other.right, strict=True)]  # fmt: skip
    return CorruptionDifference(
        corruption=name,
        base_accuracy=sum(first) / len(first),
        candidate_accuracy=sum(second) / len(second),
        difference=sum(moved) / len(moved),
        interval=mean_interval(moved, within=(-1.0, 1.0)),
        gained=pairs.count(("0", "1")),
        lost=pairs.count(("1", "0")),
    )


def _mean(cells: Sequence[CorruptionCell]) -> tuple[float, tuple[float, float]]:
    shares = _shares(cells)
    return sum(cell.correct for cell in cells) / (len(cells) * len(shares)), mean_interval(shares, within=(0.0, 1.0))


def _shares(cells: Sequence[CorruptionCell]) -> list[float]:
    """For each image the share of these cells in which it is classified correctly."""
    return [marks.count("1") / len(cells) for marks in zip(*(cell.right for cell in cells), strict=True)]
