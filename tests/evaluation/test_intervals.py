import pytest
from scipy.stats import binomtest

from lipforge.errors import InputError
from lipforge.evaluation.intervals import clopper_pearson, interval_of, wilson


@pytest.mark.parametrize(("successes", "trials"), [(0, 10), (10, 10), (1, 10), (86, 100), (3521, 10000)])
@pytest.mark.parametrize("confidence", [0.95, 0.999])
def test_the_interval_is_scipys_exact_one(successes, trials, confidence):
    expected = binomtest(successes, trials).proportion_ci(confidence, method="exact")
    assert clopper_pearson(successes, trials, confidence) == pytest.approx((expected.low, expected.high), abs=1e-12)


@pytest.mark.parametrize(("successes", "trials"), [(0, 10), (10, 10), (1, 10), (86, 100), (3521, 10000)])
@pytest.mark.parametrize("confidence", [0.95, 0.999])
def test_wilsons_interval_is_scipys(successes, trials, confidence):
    expected = binomtest(successes, trials).proportion_ci(confidence, method="wilson")
    assert wilson(successes, trials, confidence) == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_an_interval_is_chosen_by_name():
    assert interval_of(3, 9) == clopper_pearson(3, 9)
    assert interval_of(3, 9, "wilson", 0.9) == wilson(3, 9, 0.9)


@pytest.mark.parametrize(("successes", "trials"), [(-1, 5), (6, 5), (0, 0)])
def test_impossible_counts_are_named(successes, trials):
    with pytest.raises(InputError, match="successes must lie in"):
        clopper_pearson(successes, trials)
    with pytest.raises(InputError, match="successes must lie in"):
        wilson(successes, trials)
