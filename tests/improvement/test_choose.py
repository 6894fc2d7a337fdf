import re
from dataclasses import replace
from typing import Any

import pytest
from scipy.stats import binom

from lipforge.forge import TTA
from lipforge.improvement.choose import Candidate, best_so_far, choose, clean_cost, combinations, corrected
from lipforge.results.improve import CandidateScore
from lipforge.statistics import anytime_p_value, paired

MIRROR, MORE = TTA.parse("mirror"), TTA.parse("mirror x diagonals")
COUNT = 1000


def score(label: str, robust: int, *, clean: int = 800, cost: int = 1, **changes: Any) -> CandidateScore:
    """A candidate that keeps the first `robust` images robust where the base keeps 300 of 800 correct ones."""
    outcome = ("robust",) * robust + ("apgd",) * (clean - robust) + ("misclassified",) * (COUNT - clean)
    base = [at < 300 for at in range(COUNT)]
    change = paired(base, [word == "robust" for word in outcome], anytime=True)
    correct = paired([at < 800 for at in range(COUNT)], [at < clean for at in range(COUNT)], anytime=True)
    is_base = label == "nothing"
    made = CandidateScore(
        label, tuple(label.split(" + ")), cost, 0.0, "base" if is_base else "attacked", COUNT, clean / COUNT, (0, 1),
        robust / COUNT, (0, 1), None if is_base else correct, None if is_base else change, None, 0, 0, 0.0, outcome,
    )  # fmt: skip
    return replace(made, **changes)


def chosen(*others: CandidateScore, min_clean: float | None = None) -> tuple[str, str]:
    best, reason = choose(corrected([score("nothing", 300), *others]), min_clean)
    return best.label, reason


def test_the_best_that_is_sure_is_chosen_with_its_figures():
    label, reason = chosen(score("head", 320), score("mirror", 340, cost=2), score("forge", 280))
    assert label == "mirror"
    assert "+4.0 [" in reason
    assert "2 forward passes per image" in reason
    assert "correction for 3 candidates" in reason


def test_half_a_point_more_is_not_worth_more_passes():
    assert chosen(score("mirror", 340, cost=2), score("mirror x diagonals", 345, cost=6))[0] == "mirror"
    assert chosen(score("mirror", 340, cost=2), score("mirror x diagonals", 346, cost=6))[0] == "mirror x diagonals"


def test_what_may_be_chance_is_not_chosen():
    label, reason = chosen(score("head", 304))
    assert label == "nothing"
    assert "head, changes robust accuracy by +0.4 [" in reason
    assert "may be chance" in reason


@pytest.mark.parametrize(("clean", "said"), [(800, []), (797, []), (795, ["-0.5 ["]), (780, ["-2.0 ["])])
def test_a_choice_that_seems_to_cost_clean_accuracy_says_so(clean, said):
    """Two points may be too few for a significant loss, but not for a note."""
    found = clean_cost(score("mirror", 340, clean=clean, cost=2))
    assert len(found) == len(said)
    assert all(text in note for text, note in zip(said, found, strict=True))


@pytest.mark.parametrize("candidates", [1, 10])
def test_nothing_says_how_many_images_would_show_the_gain(candidates):
    """The witness is the exact power: gained images are binomial, and none is lost."""
    _, reason = chosen(score("head", 304), *(score(f"other {number}", 300) for number in range(candidates - 1)))
    needed = re.search(
        r"if it is as large as it looks, about ([\d,]+) validation images would probably show it$", reason
    )
    assert needed is not None, reason
    count = int(needed[1].replace(",", ""))

    def power(count: int) -> float:
        significant = [anytime_p_value(gained, 0, count) * candidates <= 0.05 for gained in range(100)]
        return float((binom.pmf(range(100), count, 0.004) * significant).sum())

    assert 0.77 < power(count) < 0.87, "80 %, and up to 5 % more images"


def test_a_gain_must_survive_the_correction_for_all_that_was_tried():
    """The same ten gained images are sure alone and chance among many."""
    found = score("mirror", 310)
    assert found.robust_change is not None
    assert found.robust_change.p_value < 0.05
    assert chosen(found)[0] == "mirror"
    assert chosen(found, *(score(f"other {number}", 300) for number in range(40)))[0] == "nothing"


def test_no_gain_at_all_is_nothing():
    label, reason = chosen(score("head", 300), score("forge", 250))
    assert label == "nothing"
    assert "no candidate makes more validation images robust" in reason


def test_candidates_below_the_clean_accuracy_asked_for_are_not_chosen():
    cheap = score("head", 340, clean=700)
    assert chosen(cheap)[0] == "head"
    label, reason = chosen(cheap, min_clean=0.75)
    assert label == "nothing"
    assert "no candidate with a clean accuracy of 75 % or more makes" in reason
    assert "clean accuracy" not in chosen(score("head", 300))[1]


def test_what_may_not_be_chosen_neither_stops_others_nor_combines_with_them():
    tried = {
        Candidate(): score("nothing", 300),
        Candidate(("head",)): score("head", 450, clean=500),
        Candidate((), MIRROR): score("mirror", 340, cost=2),
    }
    best = best_so_far(tried, 0.65)
    assert best is not None
    assert best.label == "mirror"
    assert combinations(tried, (MIRROR,), 0.65) == []
    assert combinations(tried, (MIRROR,)) == [Candidate(("head",), MIRROR)]
    stopped = {**tried, Candidate(("forge",)): score("forge", 500, status="stopped")}
    assert best_so_far(stopped, 0.65) == best


def test_a_stopped_candidate_is_not_chosen():
    assert chosen(score("head", 340, status="stopped"))[0] == "nothing"


def test_what_helped_is_tried_together_and_with_more_transforms():
    tried = {
        Candidate(): score("nothing", 300),
        Candidate(("head",)): score("head", 320),
        Candidate(("affine",)): score("affine", 306),
        Candidate(("forge",)): score("forge", 304),
        Candidate((), MIRROR): score("mirror", 330, cost=2),
    }
    found = [candidate.label for candidate in combinations(tried, (MIRROR, MORE))]
    fits = ["head", "affine", "head + affine"]
    with_mirror, with_more = ([f"{fit} + {tta}" for fit in fits] for tta in ("mirror", "mirror x diagonals"))
    assert found == ["head + affine", *with_mirror, "mirror x diagonals", *with_more]


@pytest.mark.parametrize(
    ("candidate", "label", "cost"),
    [
        (Candidate(), "nothing", 1),
        (Candidate(("head", "forge")), "head + forge", 1),
        (Candidate(("head",), MORE), "head + mirror x diagonals", 6),
    ],
)
def test_a_candidate_says_what_it_is_and_what_it_costs(candidate, label, cost):
    assert (candidate.label, candidate.cost) == (label, cost)


def test_what_looks_masked_is_not_chosen_and_stops_nobody():
    masked, sure = score("forge", 500, unreliable=True), score("mirror", 340, cost=2)
    assert chosen(masked, sure)[0] == "mirror"
    assert chosen(masked) == (
        "nothing",
        "nothing: no reliable candidate makes more validation images robust than the base",
    )
    tried = {Candidate(): score("nothing", 300), Candidate(("forge",)): masked}
    best = best_so_far(tried, None)
    assert best is not None
    assert best.label == "nothing"
    assert Candidate(("forge",), MORE) not in combinations(tried, [MIRROR, MORE])
