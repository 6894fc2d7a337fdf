"""The lower bound: SciPy as witness, exact rational arithmetic for the rounding, and its coverage."""

from fractions import Fraction
from math import comb

import pytest
from scipy import stats

from lipforge.certify.binomial import interval, lower_bound, radius_of
from lipforge.errors import InputError


def tail(trials: int, successes: int, probability: float) -> Fraction:
    """P(Binomial(trials, probability) >= successes), without any rounding."""
    p = Fraction(probability)
    return sum(
        (comb(trials, k) * p**k * (1 - p) ** (trials - k) for k in range(successes, trials + 1)), start=Fraction(0)
    )


@pytest.mark.parametrize("alpha", [0.05, 0.001, 1e-6])
@pytest.mark.parametrize(("successes", "trials"), [(1, 1), (60, 100), (99, 100), (100, 100), (99_000, 100_000)])
def test_the_bound_is_scipys_clopper_pearson(successes, trials, alpha):
    witness = stats.binomtest(successes, trials, alternative="greater").proportion_ci(1 - alpha, "exact").low
    assert lower_bound(successes, trials, alpha) == pytest.approx(witness, rel=1e-7)
    assert lower_bound(successes, trials, alpha) < witness


@pytest.mark.parametrize("alpha", [0.5, 0.05, 0.001, 1e-9])
@pytest.mark.parametrize("trials", [1, 7, 100, 160])
def test_the_bound_is_never_above_the_exact_solution(trials, alpha):
    """P(X >= k) grows with p, so the bound is safe exactly if that probability is at most alpha there."""
    for successes in sorted({1, trials // 3, trials // 2, trials - 1, trials} - {0}):
        assert tail(trials, successes, lower_bound(successes, trials, alpha)) <= Fraction(alpha), successes


def test_no_success_bounds_nothing():
    assert lower_bound(0, 100, alpha=0.001) == 0


def test_all_successes_give_the_closed_form_alpha_to_the_1_over_n():
    assert lower_bound(1000, 1000, alpha=0.001) == pytest.approx(0.001 ** (1 / 1000), rel=2e-9)


def test_the_radius_is_scipys_quantile_rounded_downwards():
    for probability in (0.5001, 0.6, 0.9, 0.99, 0.99993):
        exact = 0.25 * stats.norm.ppf(probability)
        assert exact - 2e-6 < radius_of(probability, 0.25) <= exact


@pytest.mark.parametrize("probability", [0.0, 0.3, 0.5])
def test_up_to_one_half_there_is_no_radius(probability):
    assert radius_of(probability, 0.25) == 0


@pytest.mark.parametrize(("successes", "trials"), [(0, 50), (13, 50), (50, 50)])
def test_the_two_sided_interval_is_scipys(successes, trials):
    witness = stats.binomtest(successes, trials).proportion_ci(0.95, "exact")
    assert interval(successes, trials) == pytest.approx((witness.low, witness.high), rel=1e-7)


@pytest.mark.parametrize(("successes", "trials", "alpha"), [(5, 4, 0.1), (-1, 4, 0.1), (0, 0, 0.1)])
def test_impossible_counts_are_refused(successes, trials, alpha):
    with pytest.raises(InputError, match="successes must lie in"):
        lower_bound(successes, trials, alpha)


@pytest.mark.parametrize("alpha", [0.0, 1.0, -0.1, float("nan")])
def test_a_confidence_that_cannot_be_had_is_refused(alpha):
    with pytest.raises(InputError, match="alpha must lie in"):
        lower_bound(1, 2, alpha)
