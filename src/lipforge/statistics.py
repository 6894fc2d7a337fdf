"""How sure a share is, and what changed between two classifiers on the same images: numbers in, numbers out."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol, get_args

from scipy.special import bdtr, betaincinv, ndtri  # not scipy.stats: it takes a second to import

from lipforge.errors import InputError
from lipforge.records import Share

Method = Literal["clopper-pearson", "wilson"]

SAFETY = 1e-9  # by which exact bounds are moved to the safe side, relatively: above SciPy's own error, as tests check

METHOD = (
    "Newcombe's square-and-add of Clopper-Pearson limits, widened to 0 where the exact McNemar test does not reject"
)


def lower_bound(successes: int, trials: int, alpha: float) -> float:
    """One-sided Clopper-Pearson lower bound: at most the true success probability, except with probability alpha.

    It solves P(Binomial(trials, p) >= successes) = alpha for p, and is rounded downwards.

    >>> round(lower_bound(990, 1000, alpha=0.001), 4)
    0.976
    """
    _check_counts(successes, trials)
    check_alpha(alpha)
    if successes == 0:
        return 0.0
    return float(betaincinv(successes, trials - successes + 1, alpha)) * (1 - SAFETY)


def clopper_pearson(successes: int, trials: int, confidence: float = 0.95) -> tuple[float, float]:
    """The exact two-sided interval for a success probability: it covers at least `confidence` of the time.

    >>> low, high = clopper_pearson(86, 100)
    >>> round(low, 4), round(high, 4)
    (0.7763, 0.9213)
    """
    tail = (1 - confidence) / 2
    return lower_bound(successes, trials, tail), 1 - lower_bound(trials - successes, trials, tail)


def wilson(successes: int, trials: int, confidence: float = 0.95) -> tuple[float, float]:
    """Wilson's score interval: shorter than the exact one, and covers `confidence` only on average.

    >>> low, high = wilson(86, 100)
    >>> round(low, 4), round(high, 4)
    (0.7786, 0.9147)
    """
    _check_counts(successes, trials)
    z, share = float(ndtri((1 + confidence) / 2)), successes / trials
    scale = 1 + z * z / trials
    centre = (share + z * z / (2 * trials)) / scale
    half = z * math.sqrt(share * (1 - share) / trials + (z / (2 * trials)) ** 2) / scale
    return max(centre - half, 0.0), min(centre + half, 1.0)


def interval_of(
    successes: int, trials: int, method: Method = "clopper-pearson", confidence: float = 0.95
) -> tuple[float, float]:
    if method not in get_args(Method):
        raise InputError(f"the interval must be one of {', '.join(get_args(Method))}, got {method!r}")
    return (clopper_pearson if method == "clopper-pearson" else wilson)(successes, trials, confidence)


class PerImage(Protocol):
    """A result that says for each image whether it is robust, such as `RobustResult`."""

    @property
    def robust(self) -> Sequence[bool]: ...


@dataclass(frozen=True)
class Comparison:
    """The paired difference, candidate minus base, over the same `count` images.

    `gained` images are robust on the candidate and not on the base, `lost` ones the other way round; `gained_images`
    and `lost_images` are their positions. `interval` is the 95 % interval of the difference, by `method`, and `p_value`
    that of the exact two-sided McNemar test; the interval excludes 0 only where the p-value is below 0.05.
    """

    kind: ClassVar[str] = "comparison"
    base_accuracy: Share
    candidate_accuracy: Share
    count: int
    gained: int
    lost: int
    difference: float
    interval: tuple[float, float]
    p_value: Share
    robust_both: int
    gained_images: tuple[int, ...] = ()
    lost_images: tuple[int, ...] = ()
    method: str = METHOD

    @property
    def decided(self) -> bool:
        """Whether the interval excludes 0."""
        return self.interval[0] > 0 or self.interval[1] < 0

    def __str__(self) -> str:
        low, high = (100 * bound for bound in self.interval)
        return (
            f"base {100 * self.base_accuracy:.2f}, candidate {100 * self.candidate_accuracy:.2f}; "
            f"difference {100 * self.difference:+.2f} [{low:+.2f}, {high:+.2f}], "
            f"gained {self.gained}, lost {self.lost}, p = {self.p_value:.2g}, n = {self.count}"
        )


def compare(base: PerImage, candidate: PerImage) -> Comparison:
    """The paired comparison of two results; data, attack, threat and seed must be the same where both name them."""
    digest = getattr(base, "data_digest", "")
    same_images = bool(digest) and digest == getattr(candidate, "data_digest", "")  # whatever their data are called
    for field in (*(() if same_images else ("data", "data_digest")), "attack", "norm", "eps", "seed"):
        first, second = getattr(base, field, None), getattr(candidate, field, None)
        if first != second:
            raise InputError(
                f"base and candidate must have the same {field} to be compared, got {first!r} and {second!r}"
            )
    return paired(base.robust, candidate.robust)


def paired(base_robust: Sequence[bool], candidate_robust: Sequence[bool]) -> Comparison:
    """The comparison of two lists that say for the same images, in the same order, which of them are robust.

    >>> print(paired([True, True, False, False], [True, False, True, True]))
    base 50.00, candidate 75.00; difference +25.00 [-62.95, +85.67], gained 2, lost 1, p = 1, n = 4
    """
    if len(base_robust) != len(candidate_robust) or not len(base_robust):
        raise InputError(
            "base and candidate must cover the same images, at least one, "
            f"got {len(base_robust)} and {len(candidate_robust)}"
        )
    count, pairs = len(base_robust), list(zip(base_robust, candidate_robust, strict=True))
    gained = tuple(position for position, (base, candidate) in enumerate(pairs) if candidate and not base)
    lost = tuple(position for position, (base, candidate) in enumerate(pairs) if base and not candidate)
    both = sum(bool(base and candidate) for base, candidate in pairs)
    return Comparison(
        base_accuracy=(both + len(lost)) / count,
        candidate_accuracy=(both + len(gained)) / count,
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

    The distances of the two shares from their exact limits are squared and added, with the correlation that the shares
    have because they exclude each other. The exact limits keep the coverage above the nominal one for a handful of
    images, where Tango's score interval (1998) falls below it. Where McNemar's exact test does not reject, 0 is inside.
    """
    if min(gained, lost) < 0 or gained + lost > count or count < 1:
        raise InputError(f"gained and lost must add up to at most count, got {gained} and {lost} of {count}")
    (low_gain, high_gain), (low_loss, high_loss) = (
        clopper_pearson(found, count, confidence) for found in (gained, lost)
    )
    gain, loss = gained / count, lost / count
    # Of two shares of one multinomial; one without spread has none.
    spread = 0 < gain < 1 and 0 < loss < 1
    correlation = -math.sqrt(gain * loss / ((1 - gain) * (1 - loss))) if spread else 0.0
    low = gain - loss - _add(gain - low_gain, high_loss - loss, correlation)
    high = gain - loss + _add(high_gain - gain, loss - low_loss, correlation)
    if mcnemar(gained, lost) >= 1 - confidence:
        low, high = min(low, 0.0), max(high, 0.0)
    return max(low, -1.0), min(high, 1.0)


def images_to_decide(comparison: Comparison, power: float = 0.8, confidence: float = 0.95) -> int | None:
    """How many images McNemar's test needs to see the observed difference with that power; None if it is 0. A plan, no
    promise: Connor's formula (1987) takes the observed shares of gained and lost images for the true ones."""
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


def check_alpha(alpha: float) -> None:
    if not 0 < alpha < 1:
        raise InputError(f"alpha must lie in (0, 1), got {alpha}; 0.001 claims a radius with 99.9 % confidence")


def _check_counts(successes: int, trials: int) -> None:
    if not 0 <= successes <= trials or trials == 0:
        raise InputError(f"successes must lie in 0..trials and trials above 0, got {successes} of {trials}")


def _add(first: float, second: float, correlation: float) -> float:
    return math.sqrt(first**2 - 2 * correlation * first * second + second**2)
