"""How sure a share is."""

from scipy.special import betaincinv  # scipy.stats has the same under a nicer name, but takes a second to import

from lipforge.errors import InputError


def clopper_pearson(successes: int, trials: int, confidence: float = 0.95) -> tuple[float, float]:
    """The exact two-sided interval for a success probability: it covers at least `confidence` of the time.

    >>> low, high = clopper_pearson(86, 100)
    >>> round(low, 4), round(high, 4)
    (0.7763, 0.9213)
    """
    if not 0 <= successes <= trials or trials == 0:
        raise InputError(f"successes must lie in 0..trials and trials above 0, got {successes} of {trials}")
    tail = (1 - confidence) / 2
    low = 0.0 if successes == 0 else float(betaincinv(successes, trials - successes + 1, tail))
    high = 1.0 if successes == trials else float(betaincinv(successes + 1, trials - successes, 1 - tail))
    return low, high
