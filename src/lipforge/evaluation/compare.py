"""Two classifiers on the same images: what one gained and lost against the other, and how sure that is."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from scipy.special import bdtr, ndtri  # not scipy.stats: it takes a second to import

from lipforge.errors import InputError
from lipforge.evaluation.intervals import clopper_pearson

METHOD = (
    "Newcombe's square-and-add of Clopper-Pearson limits, widened to 0 where the exact McNemar test does not reject"
)


class PerImage(Protocol):
    """A result that says for each image whether it stood, such as `RobustResult`."""

    @property
    def robust(self) -> Sequence[bool]: ...


@dataclass(frozen=True)
class Comparison:
    """The paired difference, forged minus base, over the same `count` images.

    `gained` images stand on forged and not on base, `lost` ones the other way round; `gained_images` and `lost_images`
    are their positions. `interval` is the 95 % interval of the difference, by `method`, and `p_value` that of the exact
    two-sided McNemar test; the interval leaves 0 out only where the p-value is below 0.05.
    """

    base_accuracy: float
    forged_accuracy: float
    count: int
    gained: int
    lost: int
    difference: float
    interval: tuple[float, float]
    p_value: float
    robust_both: int
    gained_images: tuple[int, ...] = ()
    lost_images: tuple[int, ...] = ()
    method: str = METHOD

    @property
    def decided(self) -> bool:
        """Whether the interval leaves 0 out."""
        return self.interval[0] > 0 or self.interval[1] < 0

    def __str__(self) -> str:
        low, high = (100 * bound for bound in self.interval)
        return (
            f"base {100 * self.base_accuracy:.2f}, forged {100 * self.forged_accuracy:.2f}; "
            f"paired {100 * self.difference:+.2f} [{low:+.2f}, {high:+.2f}], "
            f"gained {self.gained}, lost {self.lost}, p = {self.p_value:.2g}; this is {self.count} images"
        )


def compare(base: PerImage, forged: PerImage) -> Comparison:
    """The paired comparison of two results on the same images, attacked by the same means.

    Results that name their data, attack, threat or seed must name the same.
    """
    for field in ("data", "data_digest", "attack", "norm", "eps", "seed"):
        first, second = getattr(base, field, None), getattr(forged, field, None)
        if first != second:
            raise InputError(f"base and forged must have the same {field} to be compared, got {first!r} and {second!r}")
    return paired(base.robust, forged.robust)


def paired(base_robust: Sequence[bool], forged_robust: Sequence[bool]) -> Comparison:
    """The comparison of two lists that say for the same images, in the same order, which of them stand.

    >>> print(paired([True, True, False, False], [True, False, True, True]))
    base 50.00, forged 75.00; paired +25.00 [-62.95, +85.67], gained 2, lost 1, p = 1; this is 4 images
    """
    if len(base_robust) != len(forged_robust) or not len(base_robust):
        raise InputError(
            f"base and forged must cover the same images, at least one, got {len(base_robust)} and {len(forged_robust)}"
        )
    count, pairs = len(base_robust), list(zip(base_robust, forged_robust, strict=True))
    gained = tuple(position for position, (base, forged) in enumerate(pairs) if forged and not base)
    lost = tuple(position for position, (base, forged) in enumerate(pairs) if base and not forged)
    both = sum(bool(base and forged) for base, forged in pairs)
    return Comparison(
        base_accuracy=(both + len(lost)) / count,
        forged_accuracy=(both + len(gained)) / count,
        count=count,
        gained=len(gained),
        lost=len(lost),
        difference=(len(gained) - len(lost)) / count,
        interval=paired_interval(len(gained), len(lost), count),
        p_value=mcnemar(len(gained), len(lost)),
        robust_both=both,
        gained_images=gained,
        lost_images=lost,
    )


def mcnemar(gained: int, lost: int) -> float:
    """The exact two-sided p-value of McNemar's test: twice the smaller binomial tail, at most 1.

    >>> mcnemar(5, 0), round(mcnemar(2, 16), 6), mcnemar(0, 0)
    (0.0625, 0.001312, 1.0)
    """
    if gained < 0 or lost < 0:
        raise InputError(f"gained and lost must be at least 0, got {gained} and {lost}")
    return min(1.0, 2 * float(bdtr(min(gained, lost), gained + lost, 0.5))) if gained + lost else 1.0


def paired_interval(gained: int, lost: int, count: int, confidence: float = 0.95) -> tuple[float, float]:
    """The interval of the difference of two paired shares, (gained - lost) / count.

    Each of the two discordant shares has its exact limits; their distances from the estimates are squared and added,
    with the correlation that the two shares have because they exclude each other. The exact limits keep the coverage
    above the nominal one for a handful of discordant images, where the score interval of Tango (1998) falls below it;
    where the exact McNemar test does not reject, the interval contains 0.
    """
    if min(gained, lost) < 0 or gained + lost > count or count < 1:
        raise InputError(f"gained and lost must add up to at most count, got {gained} and {lost} of {count}")
    (low_gain, high_gain), (low_loss, high_loss) = (
        clopper_pearson(found, count, confidence) for found in (gained, lost)
    )
    gain, loss = gained / count, lost / count
    difference, correlation = gain - loss, _correlation(gain, loss)
    low = difference - _add(gain - low_gain, high_loss - loss, correlation)
    high = difference + _add(high_gain - gain, loss - low_loss, correlation)
    if mcnemar(gained, lost) >= 1 - confidence:
        low, high = min(low, 0.0), max(high, 0.0)
    return max(low, -1.0), min(high, 1.0)


def images_to_decide(comparison: Comparison, power: float = 0.8, confidence: float = 0.95) -> int | None:
    """How many images McNemar's test needs to see the observed difference with that power; None if it is 0.

    Connor's formula (1987), which takes the observed shares of gained and lost images for the true ones: a plan for
    the next run, not a promise.
    """
    if not (0 < power < 1 and 0 < confidence < 1):
        raise InputError(f"power and confidence must lie between 0 and 1, got {power} and {confidence}")
    difference = abs(comparison.difference)
    if difference == 0:
        return None
    discordant = (comparison.gained + comparison.lost) / comparison.count
    level, strength = float(ndtri((1 + confidence) / 2)), float(ndtri(power))
    # max: with power below 1/2 and few discordant images the second term may be a root of rounding error.
    spread = level * math.sqrt(discordant) + strength * math.sqrt(max(discordant - difference**2, 0.0))
    return math.ceil((spread / difference) ** 2)


def _correlation(gain: float, loss: float) -> float:
    """The correlation of two shares of one multinomial; 0 where one of them has no spread."""
    if not (0 < gain < 1 and 0 < loss < 1):
        return 0.0
    return -math.sqrt(gain * loss / ((1 - gain) * (1 - loss)))


def _add(first: float, second: float, correlation: float) -> float:
    return math.sqrt(first**2 - 2 * correlation * first * second + second**2)
