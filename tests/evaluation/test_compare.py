import math
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from lipforge.attacks import PGD
from lipforge.errors import InputError
from lipforge.evaluation import evaluate
from lipforge.evaluation.compare import (
    Comparison,
    compare,
    images_to_decide,
    mcnemar,
    paired,
    paired_interval,
)
from lipforge.records import to_builtins
from tests.evaluation.toys import THREAT, labelled, linear


def result(robust, **fields):
    return SimpleNamespace(robust=robust, data="d", attack="a", norm="linf", eps=0.1, seed=0, **fields)


def with_counts(gained: int, lost: int, count: int) -> Comparison:
    base = [False] * gained + [True] * lost + [True] * (count - gained - lost)
    forged = [True] * gained + [False] * lost + [True] * (count - gained - lost)
    return paired(base, forged)


def test_the_images_that_changed_sides_are_named():
    made = paired([True, True, False, False, True], [True, False, True, False, False])
    assert (made.gained_images, made.lost_images) == ((2,), (1, 4))
    assert (made.gained, made.lost, made.robust_both, made.count) == (1, 2, 1, 5)
    assert (made.base_accuracy, made.forged_accuracy) == (3 / 5, 2 / 5)
    assert made.difference == pytest.approx(made.forged_accuracy - made.base_accuracy)


def test_the_text_says_how_many_images_it_rests_on():
    assert str(with_counts(2, 16, 500)).endswith("gained 2, lost 16, p = 0.0013; this is 500 images")


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


def test_swapping_base_and_forged_mirrors_the_interval():
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
    base, forged = [True, False, True], [True, True, False]
    assert compare(result(base), result(forged)) == paired(base, forged)


@pytest.mark.parametrize("call", [lambda: mcnemar(-1, 2), lambda: paired_interval(3, 3, 5)])
def test_impossible_counts_are_refused(call):
    with pytest.raises(InputError, match="gained and lost must"):
        call()


def test_a_comparison_becomes_json():
    plain = to_builtins(with_counts(1, 2, 10))
    assert plain["gained_images"] == [0]
    assert plain["lost_images"] == [1, 2]
    assert plain["interval"][0] < 0 < plain["interval"][1]


def test_results_on_other_images_of_the_same_name_are_not_compared():
    model = linear()
    x, y = labelled(model)
    first, second = (evaluate(model, (images, y), PGD(steps=1), THREAT) for images in (x, x.flip(3)))
    with pytest.raises(InputError, match="the same data_digest"):
        compare(first, second)
