"""How sure a share is, and what changed between two classifiers on the same images: numbers in, numbers out."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import bdtr, betaincinv, ndtri, stdtrit  # not scipy.stats: it takes a second to import

from lipforge.errors import InputError
from lipforge.records import Share

Method = Literal["clopper-pearson", "wilson"]

SAFETY = 1e-9  # by which exact bounds are moved to the safe side, relatively: above SciPy's own error, as tests check

METHOD = (
    "Newcombe's square-and-add of Clopper-Pearson limits, widened to 0 where the exact McNemar test does not reject"
)
ANYTIME = "betting, valid at any number of images (Waudby-Smith and Ramdas 2024)"

STAKES = np.geomspace(0.02, 0.97, 8)  # shares of what may be staked; small ones are for small differences, many images
MOST_IMAGES = 1_000_000  # where a search for the number of images that decides ends


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


def simultaneous_width(count: int, confidence: float = 0.95) -> float:
    """How far a share of `count` images may be from the truth at all thresholds of one number at once.

    The Dvoretzky-Kiefer-Wolfowitz inequality with Massart's constant: a true curve lies within this width of the
    measured one everywhere, except with probability 1 - confidence.

    >>> round(simultaneous_width(1000), 4)
    0.0429
    """
    if count < 1 or not 0 < confidence < 1:
        raise InputError(f"count must be at least 1 and confidence lie in (0, 1), got {count} and {confidence}")
    return math.sqrt(math.log(2 / (1 - confidence)) / (2 * count))


def mean_interval(
    values: ArrayLike, confidence: float = 0.95, *, within: tuple[float, float] = (-math.inf, math.inf)
) -> tuple[float, float]:
    """Student's interval for the mean of these numbers, exact for normal ones; one number alone says nothing.

    `within` are the least and the largest value that a number can have. Between them, numbers that are all equal get
    an interval with a width: by Clopper-Pearson at most a share p of all numbers is another, and in the worst case
    these lie at the ends.

    >>> low, high = mean_interval([1.0, 2.0, 3.0])
    >>> round(low, 3), round(high, 3)
    (-0.484, 4.484)
    >>> mean_interval([1.0] * 10, within=(0, 1)) == clopper_pearson(10, 10)
    True
    """
    numbers = np.asarray(values, dtype=np.float64)
    if numbers.ndim != 1 or not len(numbers):
        raise InputError(f"values must be at least one number, got an array of shape {numbers.shape}")
    if len(numbers) == 1:
        return within
    mean, (least, most) = float(numbers.mean()), within
    if not np.ptp(numbers) and math.isfinite(most - least):
        others = clopper_pearson(0, len(numbers), confidence)[1]
        return mean - others * (mean - least), mean + others * (most - mean)
    half = float(stdtrit(len(numbers) - 1, (1 + confidence) / 2)) * float(numbers.std(ddof=1)) / math.sqrt(len(numbers))
    return max(mean - half, least), min(mean + half, most)


class PerImage(Protocol):
    """A result that says for each image whether it is robust, such as `RobustResult`."""

    @property
    def robust(self) -> Sequence[bool]: ...


@dataclass(frozen=True)
class Comparison:
    """The paired difference, candidate minus base, over the same `count` images.

    `gained` images are robust on the candidate and not on the base, `lost` ones the other way round; `gained_images`
    and `lost_images` are their positions. `interval` is the 95 % interval of the difference, by `method`, and `p_value`
    that of the exact two-sided McNemar test; the interval excludes 0 only where the p-value is below 0.05. Both hold
    for a number of images that was fixed beforehand, except with the method of `anytime_interval`: then both hold at
    any number of images, however often one looked before.
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
    """The paired comparison of two results; data, attack, threat and seed must be the same where both name them. Its
    interval and p-value hold for a number of images that was fixed beforehand."""
    check_same(base, candidate)
    return paired(base.robust, candidate.robust)


def check_same(base: object, candidate: object) -> None:
    """Raise unless two results are about the same images, attack, threat and seed, where both name them."""
    digest = getattr(base, "data_digest", "")
    same_images = bool(digest) and digest == getattr(candidate, "data_digest", "")  # whatever their data are called
    for field in (*(() if same_images else ("data", "data_digest")), "attack", "norm", "eps", "seed"):
        first, second = getattr(base, field, None), getattr(candidate, field, None)
        if first != second:
            raise InputError(
                f"base and candidate must have the same {field} to be compared, got {first!r} and {second!r}"
            )


def paired(base_robust: Sequence[bool], candidate_robust: Sequence[bool], *, anytime: bool = False) -> Comparison:
    """The comparison of two lists that say for the same images, in the same order, which of them are robust; with
    `anytime` interval and p-value hold however often one looked at fewer images before.

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
    counts = len(gained), len(lost), count
    return Comparison(
        base_accuracy=(both + len(lost)) / count,
        candidate_accuracy=(both + len(gained)) / count,
        count=count,
        gained=len(gained),
        lost=len(lost),
        difference=(len(gained) - len(lost)) / count,
        interval=anytime_interval(*counts) if anytime else paired_interval(*counts),
        p_value=anytime_p_value(*counts) if anytime else mcnemar(*counts[:2]),
        robust_both=both,
        gained_images=gained,
        lost_images=lost,
        method=ANYTIME if anytime else METHOD,
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
    _check_paired(gained, lost, count)
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


def log_wealth(gained: ArrayLike, lost: ArrayLike, count: ArrayLike, at: ArrayLike) -> NDArray[np.float64]:
    """The log of what bets on a difference above `at` have made of 1, for counts in any shape.

    Each image pays +1 (gained), -1 (lost) or 0, and a stake turns the wealth into wealth * (1 + stake * (paid - at)).
    Where the true difference is `at` or less, the wealth does not grow on average, so that it ever reaches 1/alpha
    with probability alpha at most (Ville's inequality): that is a test which holds at any number of images. The wealth
    is the mean over `STAKES`, in units of the largest stake that cannot ruin, 1 / (1 + at); it falls as `at` rises, and
    depends on the counts alone, not on the order of the images.
    """
    gained, lost, count, at = (np.asarray(value, dtype=np.float64)[..., None] for value in (gained, lost, count, at))
    stakes = STAKES / (1 + at)
    neither = count - gained - lost
    logs = gained * np.log1p(stakes * (1 - at)) + lost * np.log1p(-STAKES) + neither * np.log1p(-stakes * at)
    largest = logs.max(axis=-1, keepdims=True)  # taken out, so that nothing overflows
    found: NDArray[np.float64] = largest[..., 0] + np.log(np.exp(logs - largest).mean(axis=-1))
    return found


def anytime_limits(
    gained: ArrayLike, lost: ArrayLike, count: ArrayLike, confidence: float = 0.95, *, halvings: int = 40
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The lower and the upper limits of `anytime_interval`, for counts in any shape; they are found by halving, and at
    most 2 / 2^halvings too far out."""
    reached = math.log(2 / (1 - confidence))

    def lower(gained: Any, lost: Any) -> NDArray[np.float64]:
        gained, lost, total = np.broadcast_arrays(*(np.asarray(part, np.float64) for part in (gained, lost, count)))
        below, above = np.full(total.shape, -1.0), (gained - lost) / total
        for _ in range(halvings):
            middle = (below + above) / 2
            rejected = log_wealth(gained, lost, total, np.maximum(middle, -1 + 1e-12)) >= reached
            below, above = np.where(rejected, middle, below), np.where(rejected, above, middle)
        return below  # a rejected difference, so that what is not rejected lies above

    return lower(gained, lost), -lower(lost, gained)


def anytime_interval(gained: int, lost: int, count: int, confidence: float = 0.95) -> tuple[float, float]:
    """The interval of (gained - lost) / count that holds at every number of images at once: with probability
    `confidence` the true difference is in all of them, so one may look at any time, stop, or go on.

    It has the differences that bets on neither side have refuted (Waudby-Smith and Ramdas 2024), half of the error
    probability for each side. The images must come in random order.

    >>> low, high = anytime_interval(30, 10, 1000)
    >>> round(low, 4), round(high, 4)
    (-0.0002, 0.0434)
    """
    _check_paired(gained, lost, count)
    low, high = anytime_limits(gained, lost, count, confidence)
    return float(low), float(high)


def anytime_p_value(gained: int, lost: int, count: int) -> float:
    """The p-value that belongs to `anytime_interval`: 2 / wealth of the better of the two bets against a difference of
    0, at most 1; it is 0.05 or less where the 95 % interval excludes 0.

    >>> anytime_p_value(0, 0, 100)
    1.0
    """
    _check_paired(gained, lost, count)
    best = max(float(log_wealth(gained, lost, count, 0.0)), float(log_wealth(lost, gained, count, 0.0)))
    return min(1.0, 2 * math.exp(-best))


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down correction: p-values of which each holds for all of them together, in the given order.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[place]))
        adjusted[place] = largest
    return adjusted


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


def likely_limits(
    gain: float, loss: float, count: ArrayLike, power: float = 0.8, confidence: float = 0.95
) -> tuple[Any, Any]:
    """The limits of `anytime_interval` that `count` images keep with that power, where these shares of all images are
    gained and lost: each is the limit at a difference that is off by as much as chance moves it, on its own side.
    Gained and lost images take the parts in it that they have in the variance of the difference."""
    count = np.asarray(count, dtype=np.float64)
    variance = gain + loss - (gain - loss) ** 2
    shift = float(ndtri(power)) * np.sqrt(count / variance) if variance > 0 else 0.0

    def lower(gain: float, loss: float) -> NDArray[np.float64]:
        fewer = np.maximum(gain * count - shift * gain * (1 - gain + loss), 0.0)
        more = np.minimum(loss * count + shift * loss * (1 + gain - loss), count)
        return anytime_limits(fewer, more, count, confidence, halvings=18)[0]

    return lower(gain, loss), -lower(loss, gain)


def counts_above(count: int, most: int = MOST_IMAGES) -> NDArray[np.int64]:
    """Numbers of images above `count`, in hundreds and about 5 % apart, to search for one that decides."""
    steps = np.geomspace(count + 1, max(most, count + 1), 200)
    return np.unique(np.ceil(steps / 100).astype(np.int64) * 100)


def check_alpha(alpha: float) -> None:
    if not 0 < alpha < 1:
        raise InputError(f"alpha must lie in (0, 1), got {alpha}; 0.001 claims a radius with 99.9 % confidence")


def _check_counts(successes: int, trials: int) -> None:
    if not 0 <= successes <= trials or trials == 0:
        raise InputError(f"successes must lie in 0..trials and trials above 0, got {successes} of {trials}")


def _check_paired(gained: int, lost: int, count: int) -> None:
    if min(gained, lost) < 0 or gained + lost > count or count < 1:
        raise InputError(f"gained and lost must add up to at most count, got {gained} and {lost} of {count}")


def _add(first: float, second: float, correlation: float) -> float:
    return math.sqrt(first**2 - 2 * correlation * first * second + second**2)
