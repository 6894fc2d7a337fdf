"""From paired outcomes to one word and one sentence."""

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import NamedTuple

from scipy.special import ndtri

from lipforge.results import Verdict, holm_objection
from lipforge.statistics import Comparison, anytime_interval, counts_above, likely_limits
from lipforge.text import points

BLOCK = 500  # images between two looks at which an audit may stop


class Decision(NamedTuple):
    """The verdict, the sentence that a report begins with, for "undecided" how many images would probably decide (None
    also if that is more than a million), and for a claim how many of the images that a side seems to be robust on may
    be broken after all without changing it, by side."""

    verdict: Verdict
    sentence: str
    images_needed: int | None = None
    spare: Mapping[str, int] = MappingProxyType({})

    @property
    def decided(self) -> bool:
        return self.verdict != "undecided"

    def undecided(self, reason: str) -> "Decision":
        """The same finding, but no claim, for this reason; itself where there is none."""
        found = self.sentence.removeprefix(f"{self.verdict}: ")
        return Decision("undecided", f"undecided: {found}; {reason}") if reason else self


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
    claims = {
        "real": f"the candidate gains {found}",
        "harmful": f"the candidate loses, {found}{though}",
        "not real": f"{shown}, but it is {found}, which rules out a gain of {100 * margin:g} or more",
        "no change": f"{found}, less than {100 * margin:g} either way{though}",
    }
    if verdict in claims:
        spare = {side: spare_images(union, non_adaptive, side, margin) for side in ("base", "candidate")}
        return Decision(verdict, f"{verdict}: {claims[verdict]}", spare=spare)
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


def spare_images(union: Comparison, non_adaptive: Comparison, side: str, margin: float) -> int:
    """How many images that `side` seems to be robust on may be broken after all, and the verdict stays the same."""
    verdict = verdict_of(union, non_adaptive, same=False, margin=margin)
    alone = union.lost if side == "base" else union.gained

    def changed(broken: int) -> bool:
        # Nobody knows which: as many as can be of those that both seem robust on, or as few.
        both = min(broken, union.robust_both), max(broken - alone, 0)
        later = (_with_broken(union, side, broken - part, part) for part in both)
        return any(verdict_of(one, non_adaptive, same=False, margin=margin) != verdict for one in later)

    return bisect_left(range(1, alone + union.robust_both + 1), True, key=changed)


def _with_broken(union: Comparison, side: str, alone: int, both: int) -> Comparison:
    """The comparison if more images were broken on a side: `alone` of those that only it seemed robust on, and `both`
    of those that both did."""
    change = (both, -alone) if side == "base" else (-alone, both)
    gained, lost = union.gained + change[0], union.lost + change[1]
    interval, difference = anytime_interval(gained, lost, union.count), (gained - lost) / union.count
    return replace(union, gained=gained, lost=lost, difference=difference, interval=interval)


def among_others(decision: Decision, union: Comparison, others: Sequence[float]) -> Decision:
    """The decision, undecided if it claims a gain or a loss that does not survive Holm's correction over all audits of
    a run; `others` are the p-values of the other audits."""
    return decision.undecided(holm_objection(decision.verdict, union.p_value, others))


def on_unseen(decision: Decision, reused: int) -> Decision:
    """The decision, undecided if it claims a gain of a change that was chosen on `reused` of the images."""
    if decision.verdict != "real" or not reused:
        return decision
    images = "1 of these images" if reused == 1 else f"{reused:,} of these images"
    return decision.undecided(f"it was chosen on {images}; audit images that the choice has not seen")


def prospects(count: int, margin: float) -> str:
    """What an audit of `count` images can show and what it cannot, in one sentence for before it runs."""
    gains, counts = [thousandths / 1000 for thousandths in range(1, 501)], counts_above(0)
    least = bisect_left(gains, True, key=lambda gain: likely_real(gain, count, margin))
    can = f"a gain of about {100 * gains[least]:.1f} points or more" if least < len(gains) else "no gain"
    tells = likely_limits(*_three_to_one(min(margin, gains[-1])), counts)[0] > 0
    needed = f"about {counts[tells.argmax()]:,}" if tells.any() else "over a million"
    such = "80 % power, if three images are gained for each one lost"
    points = f"a gain of {100 * margin:g} point{'' if margin == 0.01 else 's'}"
    return (
        f"n = {count:,}: {can} is likely to be called real ({such}); to tell {points} from none takes {needed} images"
    )


def likely_real(gain: float, count: int, margin: float) -> bool:
    """Whether `count` images are likely to call a gain real, if one image is lost for every three that are gained."""
    gained, lost = _three_to_one(gain)
    by_chance = float(ndtri(0.8)) * math.sqrt((gained + lost - gain**2) / count)
    return gain - by_chance >= margin and bool(likely_limits(gained, lost, count)[0] > 0)


def _three_to_one(gain: float) -> tuple[float, float]:
    return 1.5 * gain, 0.5 * gain


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
