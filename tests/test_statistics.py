"""Intervals and paired comparisons: SciPy as witness, exact arithmetic for the rounding, simulated coverage."""

import math
from fractions import Fraction
from math import comb
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from lipforge.attacks import PGD
from lipforge.errors import InputError
from lipforge.evaluation import evaluate
from lipforge.records import to_builtins
from lipforge.statistics import (
    ANYTIME,
    METHOD,
    STAKES,
    Comparison,
    anytime_interval,
    anytime_limits,
    anytime_p_value,
    clopper_pearson,
    compare,
    holm,
    images_to_decide,
    interval_of,
    likely_limits,
    log_wealth,
    lower_bound,
    mcnemar,
    mean_interval,
    paired,
    paired_interval,
    simultaneous_width,
    wilson,
)
from lipforge.types import Threat
from tests.nets import ResidualNet, images, seeded


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


@pytest.mark.parametrize(("successes", "trials", "alpha"), [(5, 4, 0.1), (-1, 4, 0.1), (0, 0, 0.1)])
def test_a_bound_of_impossible_counts_is_refused(successes, trials, alpha):
    with pytest.raises(InputError, match="successes must lie in"):
        lower_bound(successes, trials, alpha)


@pytest.mark.parametrize("alpha", [0.0, 1.0, -0.1, float("nan")])
def test_a_confidence_that_cannot_be_had_is_refused(alpha):
    with pytest.raises(InputError, match="alpha must lie in"):
        lower_bound(1, 2, alpha)


@pytest.mark.parametrize(("successes", "trials"), [(0, 10), (10, 10), (1, 10), (13, 50), (86, 100), (3521, 10000)])
@pytest.mark.parametrize("confidence", [0.95, 0.999])
def test_the_interval_is_scipys_exact_one_moved_outwards_by_a_billionth(successes, trials, confidence):
    expected = stats.binomtest(successes, trials).proportion_ci(confidence, method="exact")
    low, high = clopper_pearson(successes, trials, confidence)
    assert (low, high) == pytest.approx((expected.low, expected.high), abs=1.1e-9)
    assert low <= expected.low < expected.high <= high


@pytest.mark.parametrize(("successes", "trials"), [(0, 10), (10, 10), (1, 10), (86, 100), (3521, 10000)])
@pytest.mark.parametrize("confidence", [0.95, 0.999])
def test_wilsons_interval_is_scipys(successes, trials, confidence):
    expected = stats.binomtest(successes, trials).proportion_ci(confidence, method="wilson")
    assert wilson(successes, trials, confidence) == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_an_interval_is_chosen_by_name():
    assert interval_of(3, 9) == clopper_pearson(3, 9)
    assert interval_of(3, 9, "wilson", 0.9) == wilson(3, 9, 0.9)


@pytest.mark.parametrize(("successes", "trials"), [(-1, 5), (6, 5), (0, 0)])
def test_an_interval_of_impossible_counts_is_refused(successes, trials):
    with pytest.raises(InputError, match="successes must lie in"):
        clopper_pearson(successes, trials)
    with pytest.raises(InputError, match="successes must lie in"):
        wilson(successes, trials)


def result(robust, **fields):
    return SimpleNamespace(robust=robust, data="d", attack="a", norm="linf", eps=0.1, seed=0, **fields)


def with_counts(gained: int, lost: int, count: int) -> Comparison:
    base = [False] * gained + [True] * lost + [True] * (count - gained - lost)
    candidate = [True] * gained + [False] * lost + [True] * (count - gained - lost)
    return paired(base, candidate)


def test_the_images_that_changed_sides_are_named():
    made = paired([True, True, False, False, True], [True, False, True, False, False])
    assert (made.gained_images, made.lost_images) == ((2,), (1, 4))
    assert (made.gained, made.lost, made.robust_both, made.count) == (1, 2, 1, 5)
    assert (made.base_accuracy, made.candidate_accuracy) == (3 / 5, 2 / 5)
    assert made.difference == pytest.approx(made.candidate_accuracy - made.base_accuracy)


def test_the_text_says_how_many_images_it_rests_on():
    assert str(with_counts(2, 16, 500)).endswith("gained 2, lost 16, p = 0.0013, n = 500")


@given(st.integers(0, 60), st.integers(0, 60))
def test_the_p_value_is_that_of_the_exact_binomial_test(gained, lost):
    if gained + lost == 0:
        assert mcnemar(0, 0) == 1.0
    else:
        assert mcnemar(gained, lost) == pytest.approx(stats.binomtest(gained, gained + lost).pvalue, abs=1e-12)


@pytest.mark.parametrize(
    ("count", "gain", "loss"),
    [(50, 0.02, 0.02), (100, 0.01, 0.03), (100, 0.05, 0.02), (100, 0.4, 0.3), (100, 0.6, 0.02), (500, 0.002, 0.016)],
)
def test_the_interval_covers_the_truth_at_least_as_often_as_it_says(count, gain, loss):
    """20,000 simulated evaluations: the standard error of a coverage of 0.95 is 0.0015, three of them are allowed."""
    draws = np.random.default_rng(0).multinomial(count, [gain, loss, 1 - gain - loss], size=20_000)
    outcomes, times = np.unique(draws[:, :2], axis=0, return_counts=True)
    intervals = [paired_interval(gained, lost, count) for gained, lost in outcomes.tolist()]
    covered = [low <= gain - loss <= high for low, high in intervals]
    coverage = float(times[covered].sum() / times.sum())
    assert coverage >= 0.95 - 0.0045


@pytest.mark.parametrize("count", [40, 150, 10_000])
def test_the_interval_leaves_zero_out_exactly_where_the_test_rejects(count):
    wrong = [
        (gained, lost)
        for gained in range(40)
        for lost in range(min(40, count - gained + 1))
        if with_interval(gained, lost, count) != (mcnemar(gained, lost) < 0.05)
    ]
    assert wrong == []


def with_interval(gained: int, lost: int, count: int) -> bool:
    low, high = paired_interval(gained, lost, count)
    return low > 0 or high < 0


def test_swapping_base_and_candidate_mirrors_the_interval():
    low, high = paired_interval(7, 2, 100)
    assert paired_interval(2, 7, 100) == pytest.approx((-high, -low))


def test_without_a_discordant_image_the_interval_still_has_a_width():
    """Neither share can be told from 0 better than Clopper-Pearson does: 1 - 0.025^(1/100)."""
    limit = 1 - 0.025 ** (1 / 100)
    assert paired_interval(0, 0, 100) == pytest.approx((-limit, limit))


def test_more_images_of_the_same_kind_narrow_the_interval():
    widths = [high - low for low, high in (paired_interval(2 * k, 8 * k, 100 * k) for k in (1, 4, 16))]
    assert widths == sorted(widths, reverse=True)
    assert widths[1] / widths[2] == pytest.approx(2, rel=0.1)


@pytest.mark.parametrize(("gained", "lost"), [(3, 9), (12, 5), (1, 6)])
def test_the_number_of_images_that_decides_gives_the_power_it_says(gained, lost):
    """The exact power of the exact test, summed over the number of discordant images (a binomial)."""
    seen = with_counts(gained, lost, 200)
    count = images_to_decide(seen, power=0.8)
    assert count is not None
    discordant, share = (gained + lost) / 200, gained / (gained + lost)
    power = 0.0
    for found in range(int(stats.binom.ppf(1 - 1e-6, count, discordant)) + 1):
        ks = np.arange(found + 1)
        rejects = np.array([mcnemar(int(k), int(found - k)) < 0.05 for k in ks])
        power += stats.binom.pmf(found, count, discordant) * stats.binom.pmf(ks, found, share)[rejects].sum()
    # The formula is that of the test by the normal distribution; the exact test is a little more careful.
    assert 0.70 <= power <= 0.82


def test_no_number_of_images_decides_a_difference_of_zero():
    assert images_to_decide(with_counts(4, 4, 100)) is None


def test_more_power_needs_more_images():
    seen = with_counts(1, 8, 500)
    counts = [images_to_decide(seen, power=power) for power in (0.5, 0.8, 0.95)]
    assert all(count is not None for count in counts)
    assert counts == sorted(counts, key=lambda count: count or math.inf)
    assert len(set(counts)) == 3


def test_results_on_other_images_or_by_other_attacks_are_not_compared():
    with pytest.raises(InputError, match="same attack to be compared, got 'a' and 'b'"):
        compare(result([True]), SimpleNamespace(**{**vars(result([True])), "attack": "b"}))
    with pytest.raises(InputError, match="same images, at least one, got 1 and 2"):
        compare(result([True]), result([True, False]))
    with pytest.raises(InputError, match="got 0 and 0"):
        paired([], [])


def test_a_comparison_of_results_is_the_paired_comparison_of_their_images():
    base, candidate = [True, False, True], [True, True, False]
    assert compare(result(base), result(candidate)) == paired(base, candidate)


def looks(gain: float, loss: float, every: int, most: int, times: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Gained, lost and counted images at every look of simulated audits, (times, looks) each."""
    share = [gain, loss, 1 - gain - loss]
    found = np.random.default_rng(0).multinomial(every, share, size=(times, most // every)).cumsum(axis=1)
    return found[..., 0], found[..., 1], np.broadcast_to(np.arange(every, most + 1, every), found.shape[:2])


def test_the_wealth_is_the_mean_of_the_products_over_the_stakes():
    """Image by image, as a bettor would count it; the order does not matter."""
    paid, at = np.array([1, 0, -1, 0, 1, 1, 0, 0]), 0.03
    wealth = np.mean([np.prod(1 + stake / (1 + at) * (paid - at)) for stake in STAKES])
    assert float(log_wealth(3, 1, 8, at)) == pytest.approx(math.log(wealth), rel=1e-12)


@pytest.mark.parametrize(("gain", "loss"), [(0.03, 0.03), (0.004, 0.014), (0.2, 0.1), (0.0, 0.02)])
def test_the_wealth_does_not_grow_on_average_where_the_bet_is_false(gain, loss):
    """The expected factor of one image is 1 for every stake if the difference is `at`: a martingale, in closed form."""
    at = gain - loss
    stakes = STAKES / (1 + at)
    factor = gain * (1 + stakes * (1 - at)) + loss * (1 - stakes * (1 + at)) + (1 - gain - loss) * (1 - stakes * at)
    assert factor == pytest.approx(np.ones(len(STAKES)), abs=1e-12)
    assert (1 - stakes * (1 + at) > 0).all(), "no stake can ruin"


@given(st.integers(0, 300), st.integers(0, 300), st.integers(1, 3000), st.floats(-0.9, 0.9), st.floats(0.001, 0.09))
def test_the_wealth_falls_as_what_it_bets_against_rises(gained, lost, neither, at, more):
    count = gained + lost + neither
    assert log_wealth(gained, lost, count, at + more) <= log_wealth(gained, lost, count, at) + 1e-9


@pytest.mark.parametrize(("gain", "loss"), [(0.01, 0.01), (0.03, 0.03), (0.05, 0.05), (0.015, 0.005), (0.005, 0.02)])
def test_an_interval_that_is_looked_at_all_the_time_covers_the_truth(gain, loss):
    """2,000 simulated audits with 100 looks each: the chance that any of the 100 intervals misses is at most 5 %; the
    interval for a fixed number of images misses in far more. Standard error of 0.05: 0.005."""
    gained, lost, count = looks(gain, loss, 100, 10_000, 2000)
    misses = [log_wealth(*counts, count, at) >= math.log(40)
              for counts, at in (((gained, lost), gain - loss), ((lost, gained), loss - gain))]  # fmt: skip
    assert np.logical_or(*misses).any(axis=1).mean() <= 0.05


@pytest.mark.parametrize(("gained", "lost", "count"), [(30, 10, 1000), (0, 9, 500), (3, 3, 100), (16, 0, 16)])
def test_the_limits_are_where_the_wealth_reaches_40(gained, lost, count):
    low, high = anytime_interval(gained, lost, count)
    assert float(log_wealth(gained, lost, count, low)) == pytest.approx(math.log(40), abs=1e-6)
    if high < 1:
        assert float(log_wealth(lost, gained, count, -high)) == pytest.approx(math.log(40), abs=1e-6)
    assert low < (gained - lost) / count <= high


def test_the_interval_for_any_time_is_wider_than_the_one_for_a_fixed_number():
    low, high = anytime_interval(60, 10, 1000)
    fixed_low, fixed_high = paired_interval(60, 10, 1000)
    assert low < fixed_low < fixed_high < high
    assert anytime_interval(10, 60, 1000) == pytest.approx((-high, -low), abs=1e-10)


def test_limits_of_many_counts_are_those_of_each():
    low, high = anytime_limits([30, 0], [10, 9], [1000, 500])
    assert list(zip(low, high, strict=True)) == [anytime_interval(30, 10, 1000), anytime_interval(0, 9, 500)]


@given(st.integers(0, 40), st.integers(0, 40))
def test_the_p_value_for_any_time_is_that_of_the_interval(gained, lost):
    low, high = anytime_interval(gained, lost, 500)
    assert (anytime_p_value(gained, lost, 500) <= 0.05) == (low > 0 or high < 0)


def test_a_comparison_says_which_interval_it_has():
    base, candidate = [False] * 20 + [True] * 30, [True] * 50
    fixed, anytime = paired(base, candidate), paired(base, candidate, anytime=True)
    assert (fixed.method, fixed.p_value) == (METHOD, mcnemar(20, 0))
    assert (anytime.method, anytime.p_value) == (ANYTIME, anytime_p_value(20, 0, 50))
    assert anytime.interval == anytime_interval(20, 0, 50)


@pytest.mark.parametrize("candidates", [1, 10])
@pytest.mark.parametrize(
    ("gain", "loss"), [(0.015, 0.005), (0.03, 0.01), (0.06, 0.02), (0.02, 0.0), (0.004, 0.0), (0.1, 0.07)]
)
def test_the_likely_limits_are_kept_with_the_power_they_say(gain, loss, candidates):
    """At the first number of images of which the likely lower limit is above 0, 80 % of audits have one above 0."""
    counts = np.arange(100, 10_000, 10)
    low, _ = likely_limits(gain, loss, counts, confidence=1 - 0.05 / candidates)
    count = int(counts[(low > 0).argmax()])
    found = np.random.default_rng(0).multinomial(count, [gain, loss, 1 - gain - loss], size=4000)
    power = (log_wealth(found[:, 0], found[:, 1], count, 0.0) >= math.log(40 * candidates)).mean()
    assert 0.76 <= power <= 0.85


@given(st.lists(st.floats(0, 1), min_size=1, max_size=6))
def test_holms_correction_rejects_what_its_steps_reject(p_values):
    """Witness: the steps as Holm wrote them, smallest first, up to the first that fails."""
    order, rejected = sorted(range(len(p_values)), key=p_values.__getitem__), set()
    for rank, place in enumerate(order):
        if p_values[place] * (len(p_values) - rank) > 0.05:
            break
        rejected.add(place)
    assert {place for place, p_value in enumerate(holm(p_values)) if p_value <= 0.05} == rejected


@pytest.mark.parametrize(
    "call", [lambda: mcnemar(-1, 2), lambda: paired_interval(3, 3, 5), lambda: anytime_interval(3, 3, 5)]
)
def test_impossible_counts_are_refused(call):
    with pytest.raises(InputError, match="gained and lost must"):
        call()


def test_a_comparison_becomes_json():
    values = to_builtins(with_counts(1, 2, 10))
    assert values["gained_images"] == [0]
    assert values["lost_images"] == [1, 2]
    assert values["interval"][0] < 0 < values["interval"][1]


def test_results_on_other_images_of_the_same_name_are_not_compared():
    model, x = seeded(ResidualNet), images(4)
    y = model(x).argmax(dim=1)
    first, second = (evaluate(model, (taken, y), PGD(steps=1), Threat("linf", 0.01)) for taken in (x, x.flip(3)))
    with pytest.raises(InputError, match="the same data_digest"):
        compare(first, second)


def test_the_simultaneous_band_is_never_narrower_than_what_kolmogorov_needs():
    """Massart's bound against the exact finite-sample distribution of the largest deviation, two-sided."""
    for count in (10, 100, 1000):
        exact = float(stats.kstwo.ppf(0.95, count))
        assert exact <= simultaneous_width(count) <= 1.06 * exact


def test_the_interval_of_a_mean_is_students():
    values = [0.1, 0.4, 0.35, 0.8]
    expected = stats.t.interval(0.95, 3, np.mean(values), stats.sem(values))
    assert mean_interval(values) == pytest.approx(expected)
    assert mean_interval([0.3]) == (-math.inf, math.inf)


def test_the_interval_of_a_mean_lies_within_what_values_can_be():
    assert mean_interval([0.1, 0.4, 0.35, 0.8], within=(0, 1))[0] == 0.0
    assert mean_interval([0.1, 0.4, 0.35, 0.8], within=(0, 0.85))[1] == 0.85
    assert mean_interval([0.3], within=(0, 1)) == (0, 1)


@pytest.mark.parametrize("value", [0.0, 0.25, 1.0])
def test_equal_values_have_an_interval_with_a_width(value):
    """The worst case in closed form: other values are seen except with probability 0.025, and are extreme."""
    share = 1 - 0.025 ** (1 / 20)
    low, high = mean_interval([value] * 20, within=(0, 1))
    assert (low, high) == pytest.approx((value * (1 - share), value + share * (1 - value)))
    low, high = mean_interval([0.0] * 20, within=(-1, 1))
    assert (low, high) == pytest.approx((-share, share))


def test_bands_and_means_of_nothing_are_refused():
    with pytest.raises(InputError, match="count must be at least 1"):
        simultaneous_width(0)
    with pytest.raises(InputError, match="values must be at least one number"):
        mean_interval([])
