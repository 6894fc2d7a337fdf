import dataclasses

import pytest

from lipforge.evaluation.scores import (
    RatioScore,
    best_of,
    both,
    choose,
    clean_score,
    doubts,
    neighbourhood,
    robust_fields,
)


def score(ratio: float, clean: int, stands: int | None = None, count: int = 20) -> RatioScore:
    made = clean_score(ratio, [{"right": [True] * clean + [False] * (count - clean), "seconds": 0.0}])
    if stands is None:
        return made
    outcome = ("robust",) * stands + ("pgd",) * (count - stands)
    record = dict.fromkeys(
        ("tried", "pushed", "attacked", "spared", "checked", "failed", "square", "forwards", "backwards"), 0
    )
    fields = robust_fields([{**record, "outcome": outcome, "notes": [], "seconds": 0.0}], [True] * 10 + [False] * 10)
    return dataclasses.replace(made, **fields, status="attacked" if ratio else "base")


def test_the_best_clean_ratio_and_its_neighbours_go_on():
    ratios = [score(0.01, 15), score(0.02, 18), score(0.04, 18), score(0.08, 12)]
    assert [one.ratio for one in neighbourhood(ratios)] == [0.02, 0.01, 0.04]
    assert [one.ratio for one in neighbourhood(ratios[2:])] == [0.04, 0.08]


def test_the_choice_is_the_ratio_that_keeps_the_most_images():
    chosen, reason = choose([score(0, 20, 10), score(2**-7, 20, 12), score(2**-6, 19, 18)])
    assert chosen == 2**-6
    assert reason == (
        "chose 2^-6: it keeps the most images; 18 of 20 images stand at 2^-6, 10 at base "
        "(gained 8, lost 0, p = 0.0078); 12 of 20 at 2^-7"
    )


def test_a_difference_within_chance_is_called_one():
    chosen, reason = choose([score(0, 20, 10), score(2**-7, 20, 12)])
    assert chosen == 2**-7
    assert "it keeps the most images, which this number of images cannot tell from chance;" in reason


def test_a_gain_that_spared_images_could_undo_says_so():
    # 0 of 4 checked fell: the 95 % upper limit is 1 - 0.025^(1/4) = 0.602, so up to 7 of 10 spared images may fall.
    best = dataclasses.replace(score(2**-7, 20, 16), spared=10, checked=4)
    assert best.unsure == 7
    _, reason = choose([score(0, 20, 10), best])
    assert "and up to 7 of its spared images may fall" in reason
    assert any("10 images were spared; 0 of 4" in doubt for doubt in doubts([score(0, 20, 10), best]))
    unchecked = dataclasses.replace(best, checked=0)
    assert any("10 images were spared and none of their kind was checked" in one for one in doubts([best, unchecked]))


@pytest.mark.parametrize("stands", [10, 9])
def test_without_a_ratio_that_beats_the_base_the_choice_is_no_forging(stands):
    chosen, reason = choose([score(0, 20, 10), score(2**-7, 20, stands)])
    assert chosen == 0.0
    assert reason.startswith("chose 0, no forging: no ratio keeps more images than base")


def test_of_equal_ratios_the_one_with_the_better_clean_accuracy_and_then_the_gentler_one_wins():
    assert best_of([score(2**-8, 18, 12), score(2**-7, 19, 12)]).ratio == 2**-7
    assert best_of([score(2**-8, 19, 12), score(2**-7, 19, 12)]).ratio == 2**-8


def test_of_two_contests_the_base_has_what_fell_in_either_and_each_image_once():
    base = score(0, 4, 2, count=4)
    first = dataclasses.replace(base, outcome=("robust", "found on 2^-7", "pgd", "robust"), tried=1)
    second = dataclasses.replace(base, outcome=("found on a=0.5", "found on a=0.5", "pgd", "robust"), tried=2)
    folded = both(first, second)
    assert folded.outcome == ("found on a=0.5", "found on 2^-7", "pgd", "robust")
    assert (folded.tried, folded.standing, folded.robust_accuracy) == (2, 1, 0.25)
