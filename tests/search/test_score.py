import dataclasses

import pytest

from lipforge.results import RatioScore
from lipforge.search.choose import choose_ratio
from lipforge.search.score import (
    attacked_score,
    best_of,
    choose,
    clean_score,
    search_notes,
    with_base,
    with_neighbours,
)
from lipforge.search.screen import COUNTS
from tests.search.tilted import ATTACK, THREAT, Flat, task


def score(ratio: float, clean: int, robust: int | None = None, count: int = 20) -> RatioScore:
    made = clean_score(ratio, [{"correct": [True] * clean + [False] * (count - clean), "seconds": 0.0}])
    if robust is None:
        return made
    outcome = ["robust"] * robust + ["pgd"] * (count - robust)
    record = {**dict.fromkeys(COUNTS, 0), "skipped": 0, "outcome": outcome, "notes": []}
    return attacked_score(made, [record], [True] * 10 + [False] * (count - 10), count)


def test_the_best_clean_ratio_and_its_neighbours_are_attacked():
    ratios = [score(0.01, 15), score(0.02, 18), score(0.04, 18), score(0.08, 12)]
    assert [one.ratio for one in with_neighbours(ratios)] == [0.02, 0.01, 0.04]
    assert [one.ratio for one in with_neighbours(ratios[2:])] == [0.04, 0.08]


def test_the_choice_is_the_ratio_that_keeps_the_most_images():
    chosen, reason = choose([score(0, 20, 10), score(2**-7, 20, 12), score(2**-6, 19, 18)])
    assert chosen == 2**-6
    assert reason == (
        "chose 2^-6: it keeps the most images robust; 18 of 20 images are robust at 2^-6, 10 at base "
        "(gained 8, lost 0, p = 0.0078); 12 of 20 at 2^-7"
    )


def test_a_difference_within_chance_is_called_one():
    chosen, reason = choose([score(0, 20, 10), score(2**-7, 20, 12)])
    assert chosen == 2**-7
    assert "it keeps the most images robust, though with this many images that may be chance;" in reason


def test_a_gain_that_skipped_images_could_undo_says_so():
    # 0 of 4 rechecked were broken: the 95 % upper limit is 1 - 0.025^(1/4) = 0.602, so up to 7 of 10 skipped may be.
    best = dataclasses.replace(score(2**-7, 20, 16), skipped=10, rechecked=4)
    assert best.unsure == 7
    _, reason = choose([score(0, 20, 10), best])
    assert "and up to 7 of its skipped images may be broken" in reason
    assert any("10 images were skipped; 0 of 4" in str(note) for note in search_notes([score(0, 20, 10), best]))
    unchecked = dataclasses.replace(best, rechecked=0)
    notes = search_notes([best, unchecked])
    assert any("10 images were skipped and none of their kind was rechecked" in str(note) for note in notes)


@pytest.mark.parametrize("robust", [10, 9])
def test_without_a_ratio_that_beats_the_base_the_choice_is_no_forging(robust):
    chosen, reason = choose([score(0, 20, 10), score(2**-7, 20, robust)])
    assert chosen == 0.0
    assert reason.startswith("chose 0, no forging: no ratio keeps more images robust than base")


def test_of_equal_ratios_the_one_with_the_better_clean_accuracy_and_then_the_gentler_one_wins():
    assert best_of([score(2**-8, 18, 12), score(2**-7, 19, 12)]).ratio == 2**-7
    assert best_of([score(2**-8, 19, 12), score(2**-7, 19, 12)]).ratio == 2**-8


def test_of_two_searches_the_base_has_what_either_broke_and_each_image_once():
    base = score(0, 4, 2, count=4)
    first = dataclasses.replace(base, outcome=("robust", "transfer from 2^-7", "pgd", "robust"), transferred=1)
    outcome = ("transfer from a=0.5", "transfer from a=0.5", "pgd", "robust")
    second = dataclasses.replace(base, outcome=outcome, transferred=2)
    other = score(0.5, 4, 3, count=4)
    joined, compared = with_base([first, other], second)
    assert joined.outcome == ("transfer from a=0.5", "transfer from 2^-7", "pgd", "robust")
    assert (joined.transferred, joined.robust_count, joined.robust_accuracy) == (2, 1, 0.25)
    assert compared.against_base is not None
    assert compared.against_base.base_accuracy == 0.25


def test_the_notes_of_attacks_are_named_by_their_ratio():
    def views(setting):
        return {"only": Flat(setting)}

    found = choose_ratio(
        views, task(12), attack=ATTACK, threat=THREAT, metric="non-adaptive", ratios=(0.5,), show_progress=False
    )
    assert any(note.startswith("base: 12 of 12 images had a gradient of exactly 0") for note in found.all_notes)
