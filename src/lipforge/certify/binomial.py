"""Bounds on a success probability from counts, never tighter than the confidence that was asked for."""

from scipy.special import betaincinv, ndtri  # scipy.stats has nicer names, but takes a second to import

from lipforge.errors import InputError

MARGIN = 1e-9
"""Relative distance by which a bound is moved to the safe side: above SciPy's own error (tests compare it with exact
rational arithmetic), and far below anything that matters."""


def lower_bound(successes: int, trials: int, alpha: float) -> float:
    """One-sided Clopper-Pearson lower bound: at most the true success probability, except with probability alpha.

    It solves P(Binomial(trials, p) >= successes) = alpha for p, and is rounded downwards.

    >>> round(lower_bound(990, 1000, alpha=0.001), 4)
    0.976
    """
    if not (0 <= successes <= trials and trials >= 1):
        raise InputError(f"successes must lie in 0..trials and trials above 0, got {successes} of {trials}")
    check_alpha(alpha)
    if successes == 0:
        return 0.0
    return float(betaincinv(successes, trials - successes + 1, alpha)) * (1 - MARGIN)


def interval(successes: int, trials: int, confidence: float = 0.95) -> tuple[float, float]:
    """The exact two-sided interval for a success probability: one-sided bounds from both ends."""
    tail = (1 - confidence) / 2
    return lower_bound(successes, trials, tail), 1 - lower_bound(trials - successes, trials, tail)


def radius_of(probability: float, sigma: float) -> float:
    """sigma * Phi^-1(probability), cut off after six decimals so that it is never above it; 0 up to one half.

    >>> radius_of(0.99, sigma=0.25)
    0.581586
    """
    if probability <= 0.5:
        return 0.0
    return int(sigma * float(ndtri(probability)) * (1 - MARGIN) * 1e6) / 1e6


def check_alpha(alpha: float) -> None:
    """Raise unless alpha is a probability of error that leaves some confidence."""
    if not 0 < alpha < 1:
        raise InputError(f"alpha must lie in (0, 1), got {alpha}; 0.001 claims a radius with 99.9 % confidence")
