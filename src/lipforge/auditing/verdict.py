"""From paired outcomes to one word and one sentence."""

from dataclasses import replace
from typing import NamedTuple

from lipforge.results import Verdict
from lipforge.statistics import Comparison, counts_above, likely_limits
from lipforge.text import points

BLOCK = 500  # images between two looks at which an audit may stop


class Decision(NamedTuple):
    """The verdict, the sentence that a report begins with, and for "undecided" how many images would probably decide
    (None also if that is more than a million)."""

    verdict: Verdict
    sentence: str
    images_needed: int | None = None

    @property
    def decided(self) -> bool:
        return self.verdict != "undecided"


def decide(union: Comparison, non_adaptive: Comparison, *, same: bool, margin: float) -> Decision:
    """The verdict on a gain, from the outcomes under the union of all attacks and under the non-adaptive attack alone.

    Both need intervals that hold at any number of images (`paired(..., anytime=True)`): then a verdict is wrong with a
    probability of at most 2.5 % even if one looks as often as one likes and stops at the first verdict.
    """
    found = f"{_points(union)} under the union of all attacks"
    shown = f"non-adaptive attacks show {_points(non_adaptive)}"
    though = f", though {shown}" if non_adaptive.interval[0] > 0 else ""
    verdict = verdict_of(union, non_adaptive, same=same, margin=margin)
    if same:
        return Decision(verdict, f"no change: both gave equal logits, bit for bit, on all {union.count} images")
    if verdict == "real":
        return Decision(verdict, f"real: the candidate gains {found}")
    if verdict == "harmful":
        return Decision(verdict, f"harmful: the candidate loses, {found}{though}")
    if verdict == "not real":
        return Decision(
            verdict, f"not real: {shown}, but it is {found}, which rules out a gain of {100 * margin:g} or more"
        )
    if verdict == "no change":
        return Decision(verdict, f"no change: {found}, less than {100 * margin:g} either way{though}")
    small = f", a gain that may be below the margin of {100 * margin:g}" if union.interval[0] > 0 else ""
    needed = images_needed(union, non_adaptive, margin)
    images = "more than a million" if needed is None else f"about {needed:,}"
    way = f"{images} images would probably decide it"
    return Decision("undecided", f"undecided: {found}{small}{though}; {way}", needed)


def verdict_of(union: Comparison, non_adaptive: Comparison, *, same: bool, margin: float) -> Verdict:
    """The first of these that holds. No change: the two classifiers are the same function on these images. Real: the
    union's interval lies above 0, and the difference is at least the margin. Harmful: the interval lies below 0, and
    not within the margin. Not real: the non-adaptive attack alone would be called real, while the union shows no gain
    and its interval excludes one of the margin or more. No change: the interval lies within the margin on both sides of
    0. Undecided."""
    low, high = union.interval
    within = -margin <= low and high <= margin
    if same:
        return "no change"
    if low > 0 and union.difference >= margin:
        return "real"
    if high < 0 and not within:
        return "harmful"
    looks_real = non_adaptive.interval[0] > 0 and non_adaptive.difference >= margin
    if looks_real and low <= 0 and high < margin:
        return "not real"
    return "no change" if within else "undecided"


def images_needed(union: Comparison, non_adaptive: Comparison, margin: float) -> int | None:
    """How many images would decide with a probability of about 80 %, if the shares of gained and lost images stay as
    they are; None for more than a million."""
    counts = counts_above(union.count)
    limits = [zip(*likely_limits(*_shares(one), counts), strict=True) for one in (union, non_adaptive)]
    for count, *intervals in zip(counts, *limits, strict=True):
        later = [replace(one, interval=limit) for one, limit in zip((union, non_adaptive), intervals, strict=True)]
        if verdict_of(*later, same=False, margin=margin) != "undecided":
            return int(count)
    return None


def _shares(comparison: Comparison) -> tuple[float, float]:
    return comparison.gained / comparison.count, comparison.lost / comparison.count


def _points(comparison: Comparison) -> str:
    low, high = map(points, comparison.interval)
    counts = f"n = {comparison.count}, {comparison.gained} gained, {comparison.lost} lost"
    return f"{points(comparison.difference)} points [{low}, {high}] ({counts})"
