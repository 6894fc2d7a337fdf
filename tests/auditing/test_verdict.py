"""Verdicts on constructed outcomes: what each word means does not depend on any attack."""

import pytest

from lipforge.auditing.verdict import decide, images_needed
from lipforge.statistics import paired, paired_interval


def outcomes(both, gained, lost, neither):
    """The comparison of two lists with these numbers of images."""
    base = [True] * both + [False] * gained + [True] * lost + [False] * neither
    candidate = [True] * both + [True] * gained + [False] * lost + [False] * neither
    return paired(base, candidate)


NOTHING = outcomes(200, 0, 0, 800)
GAIN = outcomes(200, 60, 10, 730)
LOSS = outcomes(200, 10, 60, 730)
LEVEL = outcomes(200, 5, 5, 790)
FEW = outcomes(20, 4, 3, 73)


@pytest.mark.parametrize(
    ("union", "non_adaptive", "verdict"),
    [
        (GAIN, GAIN, "real"),
        (GAIN, NOTHING, "real"),
        (LEVEL, GAIN, "not real"),
        (FEW, GAIN, "not real"),
        (LOSS, GAIN, "harmful"),
        (LOSS, NOTHING, "harmful"),
        (LEVEL, LEVEL, "no change"),
        (NOTHING, NOTHING, "no change"),
        (FEW, FEW, "undecided"),
    ],
)
def test_the_verdict_follows_from_the_two_comparisons(union, non_adaptive, verdict):
    decision = decide(union, non_adaptive, same=False, margin=0.01)
    assert decision.verdict == verdict
    assert decision.sentence.startswith(f"{verdict}: ")


def test_the_same_function_is_no_change_on_any_number_of_images():
    few = outcomes(1, 0, 0, 1)
    assert decide(few, few, same=True, margin=0.01).verdict == "no change"
    assert decide(few, few, same=False, margin=0.01).verdict == "undecided"


def test_a_smaller_margin_asks_for_more_evidence_of_no_change():
    assert decide(LEVEL, LEVEL, same=False, margin=0.005).verdict == "undecided"


def test_a_harmful_candidate_that_looked_better_is_told_so():
    assert "non-adaptive attacks show +5.0 points" in decide(LOSS, GAIN, same=False, margin=0.01).sentence
    assert "non-adaptive attacks" not in decide(LOSS, NOTHING, same=False, margin=0.01).sentence


def test_the_sentence_has_the_gain_its_interval_and_its_counts():
    sentence = decide(GAIN, GAIN, same=False, margin=0.01).sentence
    assert sentence.startswith("real: the candidate gains +5.0 points [+3.")
    assert sentence.endswith("(n = 1000, 60 gained, 10 lost) under the union of all attacks")


def test_only_an_undecided_audit_says_how_many_images_it_lacks():
    assert decide(GAIN, GAIN, same=False, margin=0.01).images_needed is None
    decision = decide(FEW, FEW, same=False, margin=0.01)
    assert decision.images_needed is not None
    assert f"about {decision.images_needed:,} images" in decision.sentence


def test_that_many_images_with_the_same_shares_would_decide():
    """Witness: the interval itself, at that count and shortly before."""
    union = outcomes(30, 3, 3, 64)
    needed = images_needed(union, margin=0.01)

    def within(count):
        low, high = paired_interval(round(0.03 * count), round(0.03 * count), count)
        return low >= -0.01 and high <= 0.01

    assert within(needed)
    assert not within(round(0.95 * needed))


def test_a_large_difference_needs_fewer_images_than_a_small_one():
    large, small = outcomes(40, 8, 2, 50), outcomes(40, 6, 4, 50)
    assert large.count < images_needed(large, 0.01) < images_needed(small, 0.01)


def test_few_images_get_a_verdict_whatever_became_of_them():
    """Also where all of them differ, so that gained and lost add up to the count."""
    for count in range(1, 7):
        for gained in range(count + 1):
            for lost in range(count - gained + 1):
                union = outcomes(0, gained, lost, count - gained - lost)
                decision = decide(union, union, same=False, margin=0.01)
                assert decision.images_needed is None or decision.images_needed > count
