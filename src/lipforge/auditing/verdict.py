"""From paired outcomes to one word and one sentence."""

from typing import NamedTuple

from lipforge.results import Verdict
from lipforge.statistics import Comparison, images_to_decide, paired_interval
from lipforge.text import points


class Decision(NamedTuple):
    """The verdict, the sentence that a report begins with, and for "undecided" how many images might decide."""

    verdict: Verdict
    sentence: str
    images_needed: int | None = None


def decide(union: Comparison, non_adaptive: Comparison, *, same: bool, margin: float) -> Decision:
    """The verdict on a gain, from the outcomes under the union of all attacks and under the non-adaptive attack alone.

    The first of these that holds: no change, if the two classifiers are the same function on these images; real or
    harmful, if the union's interval lies above or below 0; not real, if only the non-adaptive attack's interval lies
    above 0; no change, if the union's interval lies within the margin; undecided.
    """
    low, high = union.interval
    found = f"{_points(union)} under the union of all attacks"
    shown = f"non-adaptive attacks show {_points(non_adaptive)}"
    if same:
        return Decision("no change", f"no change: both gave equal logits, bit for bit, on all {union.count} images")
    if low > 0:
        return Decision("real", f"real: the candidate gains {found}")
    if high < 0:
        though = f", though {shown}" if non_adaptive.interval[0] > 0 else ""
        return Decision("harmful", f"harmful: the candidate loses, {found}{though}")
    if non_adaptive.interval[0] > 0:
        return Decision("not real", f"not real: {shown}, but it is {found}")
    if -margin <= low and high <= margin:
        return Decision("no change", f"no change: {found}, less than {100 * margin:g} either way")
    needed = images_needed(union, margin)
    way = "might decide it" if union.difference else "with the same shares would show no change"
    return Decision("undecided", f"undecided: {found}; about {needed:,} images {way}", needed)


def images_needed(union: Comparison, margin: float) -> int:
    """How many images would decide, if the shares of gained and lost images stay as they are: whichever takes fewer, a
    difference that shows (McNemar's test, with 80 % power) or an interval within the margin."""
    shows = images_to_decide(union)
    wanted = [shows] if shows is not None else []
    if abs(union.difference) < margin:
        wanted.append(_images_within(union, margin))
    return max(union.count + 1, min(wanted))


def _images_within(union: Comparison, margin: float) -> int:
    """The smallest count, to within a percent, at which the interval lies within the margin."""
    count = union.count
    for _ in range(2000):
        gained = round(count * union.gained / union.count)
        lost = min(round(count * union.lost / union.count), count - gained)  # both may have been rounded up
        low, high = paired_interval(gained, lost, count)
        if -margin <= low and high <= margin:
            break
        count = max(count + 1, round(1.01 * count))
    return count


def _points(comparison: Comparison) -> str:
    low, high = map(points, comparison.interval)
    counts = f"n = {comparison.count}, {comparison.gained} gained, {comparison.lost} lost"
    return f"{points(comparison.difference)} points [{low}, {high}] ({counts})"
