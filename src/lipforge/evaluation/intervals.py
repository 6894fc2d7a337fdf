"""How sure a share is."""

import math
from typing import Literal, get_args

from scipy.special import betaincinv, ndtri  # scipy.stats has the same under nicer names, but takes long to import

from lipforge.errors import InputError

Method = Literal["clopper-pearson", "wilson"]


def interval_of(
    successes: int, trials: int, method: Method = "clopper-pearson", confidence: float = 0.95
) -> tuple[float, float]:
    """The two-sided interval for a success probability by that method."""
    if method not in get_args(Method):
        raise InputError(f"the interval must be one of {', '.join(get_args(Method))}, got {method!r}")
    return (clopper_pearson if method == "clopper-pearson" else wilson)(successes, trials, confidence)


def clopper_pearson(successes: int, trials: int, confidence: float = 0.95) -> tuple[float, float]:
    """The exact two-sided interval for a success probability: it covers at least `confidence` of the time.

    >>> low, high = clopper_pearson(86, 100)
    >>> round(low, 4), round(high, 4)
    (0.7763, 0.9213)
    """
    _check(successes, trials)
    tail = (1 - confidence) / 2
    low = 0.0 if successes == 0 else float(betaincinv(successes, trials - successes + 1, tail))
    high = 1.0 if successes == trials else float(betaincinv(successes + 1, trials - successes, 1 - tail))
    return low, high


def wilson(successes: int, trials: int, confidence: float = 0.95) -> tuple[float, float]:
    """Wilson's score interval: shorter than the exact one, and covers `confidence` only on average.

    >>> low, high = wilson(86, 100)
    >>> round(low, 4), round(high, 4)
    (0.7786, 0.9147)
    """
    _check(successes, trials)
    z, share = float(ndtri((1 + confidence) / 2)), successes / trials
    scale = 1 + z * z / trials
    centre = (share + z * z / (2 * trials)) / scale
    half = z * math.sqrt(share * (1 - share) / trials + (z / (2 * trials)) ** 2) / scale
    return max(centre - half, 0.0), min(centre + half, 1.0)


def _check(successes: int, trials: int) -> None:
    if not 0 <= successes <= trials or trials == 0:
        raise InputError(f"successes must lie in 0..trials and trials above 0, got {successes} of {trials}")
