"""Robust accuracy over every eps up to a largest one, from the smallest eps that was found to break each image."""

import math
from dataclasses import dataclass
from statistics import median_low
from typing import Any, ClassVar

from lipforge.errors import InputError
from lipforge.records import Share
from lipforge.results.change import Change
from lipforge.results.evaluation import Note, Stage
from lipforge.statistics import (
    Comparison,
    check_same,
    clopper_pearson,
    mcnemar,
    mean_interval,
    paired,
    simultaneous_width,
)
from lipforge.text import eps_text, points_text, share_text
from lipforge.types import Norm

SHOWN = (1 / 8, 1 / 4, 1 / 2, 1.0)
"""The radii of tables, as shares of the largest eps: with linf 16/255 they are 2, 4, 8 and 16/255."""


@dataclass(frozen=True)
class CurveResult:
    """The robustness curve of a classifier: its accuracy under the attack at every eps up to `eps`.

    `smallest_eps` has for each image the smallest eps that was found to break it: 0 where it is misclassified, None
    where it is robust up to `eps`. A better attack would find smaller ones, so every accuracy is an upper bound. `band`
    is the half-width of the simultaneous 95 % band: with that confidence the curve over all images the data are drawn
    from lies within it at all eps at once. `area` is the mean accuracy over eps from 0 to `eps`, with Student's 95 %
    interval over the images; `median_eps` is the smallest eps at which at least half of the images are broken, None if
    fewer are at `eps`. Other fields are as in `RobustResult`.
    """

    kind: ClassVar[str] = "curve"
    label: str
    model: str
    data: str
    attack: str
    threat: str
    norm: Norm
    eps: float
    seed: int
    count: int
    clean_accuracy: Share
    clean_interval: tuple[Share, Share]
    smallest_eps: tuple[float | None, ...]
    band: float
    area: Share
    area_interval: tuple[Share, Share]
    median_eps: float | None
    stages: tuple[Stage, ...]
    forwards: int
    backwards: int
    seconds: float
    notes: tuple[Note, ...]
    data_digest: str = ""
    unreliable: bool = False
    change: Change | None = None

    def robust_at(self, eps: float) -> list[bool]:
        """Which images no perturbation that was found, of norm at most `eps`, breaks."""
        if not 0 <= eps <= self.eps:
            raise InputError(f"eps must lie in [0, {self.eps:g}], where the curve was measured, got {eps:g}")
        return [smallest is None or smallest > eps for smallest in self.smallest_eps]

    def accuracy_at(self, eps: float) -> float:
        """The share of images that are robust at `eps`."""
        return sum(self.robust_at(eps)) / self.count

    def interval_at(self, eps: float) -> tuple[float, float]:
        """The band at `eps`, which holds for all eps together."""
        accuracy = self.accuracy_at(eps)
        return max(accuracy - self.band, 0.0), min(accuracy + self.band, 1.0)

    @property
    def title(self) -> str:
        """The label, and that the curve is unreliable if it is."""
        return f"{self.label} unreliable" if self.unreliable else self.label

    @property
    def shown(self) -> tuple[float, ...]:
        """The radii that tables show."""
        return tuple(share * self.eps for share in SHOWN)

    @property
    def median_text(self) -> str:
        """The median eps, or that it is above the largest one."""
        if self.median_eps is None:
            return f"> {eps_text(self.eps)}"
        return f"{255 * self.median_eps:.2f}/255" if self.norm == "linf" else f"{self.median_eps:.3f}"

    def __str__(self) -> str:
        shares = ", ".join(
            f"{eps_text(eps)} {share_text(self.accuracy_at(eps), self.interval_at(eps))}" for eps in self.shown
        )
        doubt = ", unreliable" if self.unreliable else ""
        return (
            f"{self.label}: {self.norm} {shares}; median eps {self.median_text}, "
            f"area {share_text(self.area, self.area_interval)}, n = {self.count}, seed {self.seed}{doubt}"
        )


@dataclass(frozen=True)
class RadiusComparison:
    """Base against candidate at one eps; the interval holds for this eps alone."""

    eps: float
    comparison: Comparison


@dataclass(frozen=True)
class CurveComparison:
    """Two curves over the same images, candidate minus base.

    `area_difference` is the mean difference of their accuracies over eps from 0 to `eps`, with Student's 95 % interval
    over the images. `larger` images need a larger eps on the candidate, `smaller` ones a smaller eps; `p_value` is that
    of the exact two-sided sign test on these two counts. `radii` has the paired comparisons at a few eps.
    """

    kind: ClassVar[str] = "curve_comparison"
    base: str
    candidate: str
    data: str
    attack: str
    threat: str
    norm: Norm
    eps: float
    seed: int
    count: int
    area_difference: float
    area_interval: tuple[float, float]
    larger: int
    smaller: int
    p_value: Share
    radii: tuple[RadiusComparison, ...]

    def __str__(self) -> str:
        return (
            f"{self.candidate} against {self.base}: area {points_text(self.area_difference, self.area_interval)} "
            f"points, eps larger on {self.larger} images and smaller on {self.smaller}, p = {self.p_value:.2g}, "
            f"n = {self.count}"
        )


def curve_fields(smallest: tuple[float | None, ...], eps: float) -> dict[str, Any]:
    """What follows from the smallest eps of each image: counts, area and median, with intervals.

    >>> curve_fields((0.0, 0.5, None), eps=1.0)["area"]
    0.5
    """
    count, correct = len(smallest), sum(value != 0 for value in smallest)
    shares = _shares(smallest, eps)
    middle = median_low(math.inf if value is None else value for value in smallest)
    return {
        "count": count,
        "clean_accuracy": correct / count,
        "clean_interval": clopper_pearson(correct, count),
        "smallest_eps": smallest,
        "band": simultaneous_width(count),
        "area": sum(shares) / count,
        "area_interval": mean_interval(shares, within=(0.0, 1.0)),
        "median_eps": middle if math.isfinite(middle) else None,
    }


def compare_curves(base: CurveResult, candidate: CurveResult) -> CurveComparison:
    """The paired comparison of two curves; data, attack, norm, eps and seed must be the same."""
    check_same(base, candidate)
    first, second = (_shares(curve.smallest_eps, curve.eps) for curve in (base, candidate))
    if len(first) != len(second):
        raise InputError(f"base and candidate must cover the same images, got {len(first)} and {len(second)}")
    differences = [after - before for before, after in zip(first, second, strict=True)]
    ends = [[math.inf if one is None else one for one in curve.smallest_eps] for curve in (base, candidate)]
    larger, smaller = (sum(a < b for a, b in zip(*each, strict=True)) for each in (ends, ends[::-1]))
    return CurveComparison(
        base=base.label,
        candidate=candidate.label,
        data=base.data,
        attack=base.attack,
        threat=base.threat,
        norm=base.norm,
        eps=base.eps,
        seed=base.seed,
        count=base.count,
        area_difference=sum(differences) / base.count,
        area_interval=mean_interval(differences, within=(-1.0, 1.0)),
        larger=larger,
        smaller=smaller,
        p_value=mcnemar(larger, smaller),
        radii=tuple(RadiusComparison(eps, paired(base.robust_at(eps), candidate.robust_at(eps))) for eps in base.shown),
    )


def _shares(smallest: tuple[float | None, ...], eps: float) -> list[float]:
    """For each image the share of eps from 0 to `eps` at which it is robust."""
    return [1.0 if value is None else min(value / eps, 1.0) for value in smallest]
