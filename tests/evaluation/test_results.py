"""Shards become one result."""

from typing import Any

from lipforge.evaluation.robust import accuracies, shard_stages, totals
from lipforge.results import Note, RobustResult, Stage, SweepResult, SweepRow, merge_notes
from lipforge.statistics import clopper_pearson


def stage(attack: str, robust: int, forwards: int = 1) -> dict[str, Any]:
    return {"attack": attack, "robust": robust, "forwards": forwards, "backwards": 0, "seconds": 0.5}


def shard(outcome: list[str], *stages: dict[str, Any]) -> dict[str, Any]:
    return {
        "outcome": outcome,
        "correct": len(outcome) - outcome.count("misclassified"),
        "stages": list(stages),
        "forwards": 10,
        "backwards": 5,
        "seconds": 0.25,
    }


def test_sums_and_shares_are_over_all_shards():
    assert totals([shard(["robust"]), shard(["pgd"])]) == {"forwards": 20, "backwards": 10, "seconds": 0.5}
    outcome = ("robust", "misclassified", "pgd", "robust", "pgd", "pgd")
    found = accuracies(outcome)
    assert (found["count"], found["clean_accuracy"], found["robust_accuracy"]) == (6, 5 / 6, 2 / 6)
    assert (found["clean_interval"], found["interval"]) == (clopper_pearson(5, 6), clopper_pearson(2, 6))


def test_a_result_prints_its_shares_attack_and_count():
    about: dict[str, Any] = {
        "label": "base",
        "model": "net",
        "data": "x",
        "attack": "apgd",
        "threat": "linf 8/255",
        "norm": "linf",
    }
    rest: dict[str, Any] = {"eps": 0.1, "seed": 0, "stages": (), "early_stopped": 0, "notes": ()}
    outcome = ("robust", "misclassified", "pgd", "robust", "pgd", "pgd")
    result = RobustResult(**about, **rest, **accuracies(outcome), outcome=outcome, **totals([]))
    assert str(result) == "base: clean 83.3 [35.9, 99.6], apgd linf 8/255 33.3 [4.3, 77.7], n = 6, seed 0"


def test_a_shard_without_a_stage_enters_it_with_what_it_had_left():
    first = shard(["robust"] * 3 + ["apgd"] * 2, stage("clean", 5), stage("apgd", 3, 7), stage("square", 3, 9))
    broken = shard(["apgd"] * 4, stage("clean", 4), stage("apgd", 0, 6))
    unattacked = shard(["misclassified"] * 2)
    assert shard_stages([broken, unattacked, first]) == (
        Stage("clean", 9, 2, 0, 1.0),
        Stage("apgd", 3, 13, 0, 1.0),
        Stage("square", 3, 9, 0, 0.5),
    )


def test_a_stage_that_only_some_shards_have_keeps_its_place():
    plain = shard(["robust"] * 4, stage("clean", 4), stage("probe", 4), stage("escalate", 4))
    escalated = shard(["fab"] * 4, stage("clean", 4), stage("probe", 4), stage("fab", 1), stage("escalate", 0))
    merged = shard_stages([plain, escalated])
    assert [(one.attack, one.robust) for one in merged] == [("clean", 8), ("probe", 8), ("fab", 5), ("escalate", 4)]


def test_an_attack_that_a_cascade_holds_twice_keeps_both_stages():
    one = shard(["robust"], stage("clean", 3), stage("pgd", 2), stage("pgd", 1))
    assert [stage.robust for stage in shard_stages([one, one])] == [6, 4, 2]


def test_notes_that_count_images_are_added_up_and_others_kept_once():
    zero, random = Note("zero_gradient", "had a gradient of exactly 0", 2, 5), Note("random_outputs", "it is random")
    more = Note("zero_gradient", "had a gradient of exactly 0", 3, 4)
    merged = merge_notes([zero, random, random, more], 9)
    assert [str(note) for note in merged] == ["5 of 9 images had a gradient of exactly 0", "it is random"]


def test_what_square_broke_is_judged_on_all_images():
    square = Note("square", "were broken by Square", 1, 100)
    assert merge_notes([square], 1000) == ()  # 0.1 %: below the 0.2 % that are worth a note
    assert [str(note) for note in merge_notes([square], 300)] == ["1 of 300 images were broken by Square"]


def test_the_notes_of_a_sweep_name_their_row():
    zero = Note("zero_gradient", "had a gradient of exactly 0", 1, 2)
    shared: dict[str, Any] = {**accuracies(["robust", "pgd"]), "outcome": ("robust", "pgd"), **totals([]), "carried": 0}
    rows = tuple(SweepRow("base", "pgd", f"linf {eps}", eps, notes=(zero,), **shared) for eps in (0.1, 0.1, 0.2))
    suspicion = Note("rises_with_eps", "masked gradients?")
    result = SweepResult(rows, True, "linf", "x", 0, 2, **totals([]), notes=(suspicion,))
    assert result.all_notes == (
        "masked gradients?",
        "base, pgd linf 0.1: 1 of 2 images had a gradient of exactly 0",
        "base, pgd linf 0.2: 1 of 2 images had a gradient of exactly 0",
    )
