"""Shards become one result."""

from typing import Any

from lipforge.attacks import Stage
from lipforge.evaluation.results import About, gather, merge_notes, merge_stages

ABOUT = About("base", "net", "data", "apgd + square", "linf 8/255", "linf", 8 / 255, 0)


def stage(attack: str, robust: int, forwards: int = 1) -> dict[str, Any]:
    return {"attack": attack, "robust": robust, "forwards": forwards, "backwards": 0, "seconds": 0.5}


def shard(outcome: list[str], *stages: dict[str, Any], notes: tuple[str, ...] = ()) -> dict[str, Any]:
    return {
        "outcome": outcome,
        "right": len(outcome) - outcome.count("misclassified"),
        "stages": list(stages),
        "forwards": 10,
        "backwards": 5,
        "seconds": 0.25,
        "given_up": [0] if "robust" in outcome else [],
        "notes": list(notes),
    }


def test_sums_and_shares_are_over_all_shards():
    shards = [shard(["robust", "misclassified", "pgd", "robust"]), shard(["pgd", "pgd"])]
    result = gather(ABOUT, shards)
    assert result.outcome == ("robust", "misclassified", "pgd", "robust", "pgd", "pgd")
    assert (result.count, result.clean_accuracy, result.robust_accuracy) == (6, 5 / 6, 2 / 6)
    assert (result.forwards, result.backwards, result.seconds, result.given_up) == (20, 10, 0.5, 1)
    assert str(result) == ("base: clean 83.3 [35.9, 99.6], apgd + square linf 8/255 33.3 [4.3, 77.7], n=6 seed=0")


def test_a_shard_without_a_stage_enters_it_with_what_it_had_left():
    first = shard(["robust"] * 3 + ["apgd"] * 2, stage("clean", 5), stage("apgd", 3, 7), stage("square", 3, 9))
    fallen = shard(["apgd"] * 4, stage("clean", 4), stage("apgd", 0, 6))
    unattacked = shard(["misclassified"] * 2)
    assert merge_stages([fallen, unattacked, first]) == (
        Stage("clean", 9, 2, 0, 1.0),
        Stage("apgd", 3, 13, 0, 1.0),
        Stage("square", 3, 9, 0, 0.5),
    )


def test_a_stage_that_only_some_shards_have_stands_where_they_had_it():
    plain = shard(["robust"] * 4, stage("clean", 4), stage("probe", 4), stage("escalate", 4))
    escalated = shard(["fab"] * 4, stage("clean", 4), stage("probe", 4), stage("fab", 1), stage("escalate", 0))
    merged = merge_stages([plain, escalated])
    assert [(one.attack, one.robust) for one in merged] == [("clean", 8), ("probe", 8), ("fab", 5), ("escalate", 4)]


def test_an_attack_that_a_cascade_holds_twice_keeps_both_stages():
    one = shard(["robust"], stage("clean", 3), stage("pgd", 2), stage("pgd", 1))
    assert [stage.robust for stage in merge_stages([one, one])] == [6, 4, 2]


def test_notes_that_count_images_are_added_up_and_others_kept_once():
    zero = "images had a gradient of exactly 0: x"
    shards = [
        shard(["robust"], notes=(f"2 of 5 {zero}", "the model is random")),
        shard(["robust"], notes=("the model is random", f"3 of 4 {zero}")),
    ]
    assert merge_notes(shards, 9) == (f"5 of 9 {zero}", "the model is random")


def test_what_square_broke_is_judged_on_all_images():
    broke = shard(["robust"] * 99 + ["square"], stage("clean", 100), stage("apgd", 100), stage("square", 99))
    sound = shard(["robust"] * 100, stage("clean", 100), stage("apgd", 100), stage("square", 100))
    assert gather(ABOUT, [broke, *[sound] * 9]).notes == ()  # 0.1 %: below the 0.2 % that raise a doubt
    (note,) = gather(ABOUT, [broke, *[sound] * 2]).notes
    assert "broke another 0.3 %" in note
