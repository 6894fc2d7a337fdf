import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import nn

from lipforge.attacks import APGD, PGD, Attack, Square
from lipforge.runs import Experiment
from lipforge.search.score import attacked_score, clean_score, final_records, pending_images, pending_of
from lipforge.search.screen import REFINE, Candidate, CandidateState, Points, Screening
from lipforge.types import Threat
from tests.search.tilted import ATTACK, THREAT, Backwards, Flat, Tilted, robust, task

EXPERIMENT = Experiment.open(task())


def between(
    *models: nn.Module, skip_above: float | None = 0.1, recheck: float = 0.0, attack: Attack = ATTACK
) -> Screening:
    made = tuple(Candidate(str(number), {"only": model}) for number, model in enumerate(models))
    return Screening(made, attack, THREAT, 0, skip_above, recheck)


def alone(views: Mapping[str, nn.Module], attack: Attack = ATTACK, threat: Threat = THREAT) -> Screening:
    return Screening((Candidate("a", views),), attack, threat, 0, None, 0.0)


def screened(made: Screening, images: range = range(60)) -> dict[str, Any]:
    return dict(made.screen(EXPERIMENT.read(images)))


def finished(made: Screening, images: Sequence[int], before: dict[str, Any]) -> dict[str, Any]:
    return dict(made.finish(EXPERIMENT.read(images), before))


def attacked(made: Screening, *shards: range, finish: int = 100) -> dict[str, dict[str, Any]]:
    """For each candidate its outcomes and sums over both passes; `finish` pending images are attacked together."""
    first = [screened(made, images) for images in shards]
    pending, before = pending_images(first), {one.label: pending_of(first, one.label) for one in made.candidates}
    last = [finished(made, pending[at : at + finish], before) for at in range(0, len(pending), finish)]
    found: dict[str, dict[str, Any]] = {}
    for label in before:
        records = final_records(first, last, pending, label)
        counts = [name for name, value in records[0].items() if isinstance(value, int | float) and name != "first"]
        found[label] = {name: sum(record[name] for record in records) for name in counts}
        for name in ("outcome", "notes"):
            found[label][name] = [item for record in records for item in record[name]]
    return found


@pytest.mark.parametrize("skip_above", [None, 0.1])
def test_every_candidate_gets_the_outcome_that_the_closed_form_gives(skip_above):
    models = [Tilted(), Tilted(0.02), Tilted(0.3)]
    shard = attacked(between(*models, skip_above=skip_above), range(60))
    x, y = task()
    assert [robust(shard[label]["outcome"]) for label in "012"] == [model.robust(x, y) for model in models]


def test_an_image_broken_on_the_base_is_broken_by_the_same_point_for_one_forward():
    shard = attacked(between(Tilted(), Tilted()), range(60))
    broken = shard["0"]["outcome"].count("pgd")
    assert broken > 10
    assert shard["1"]["outcome"].count("transfer from 0") == shard["1"]["transferred"] == broken
    near = [word for word in shard["1"]["outcome"] if word == "robust"]
    # A clean pass and one at the base's point each; refinements and attacks only near the boundary.
    refined, rest = divmod(shard["1"]["backwards"] - 3 * shard["1"]["attacked"], REFINE)
    assert (rest, 0 < refined < len(near)) == (0, True)
    assert shard["1"]["forwards"] == 60 + 60 + (REFINE + 2) * refined + 5 * shard["1"]["attacked"]
    assert shard["1"]["skipped"] + shard["1"]["attacked"] == len(near)
    assert shard["1"]["skipped"] > shard["1"]["attacked"]


def test_refining_finds_what_the_points_of_the_base_do_not_show():
    base, model = Tilted(), Tilted(0.5)
    without, refined = (
        attacked(between(base, model, skip_above=skip_above), range(60))["1"]["outcome"] for skip_above in (1e-9, 0.05)
    )
    assert without.count("refine") == 0 < refined.count("refine")
    assert robust(refined) == model.robust(*task()) != robust(without)


def test_what_refining_brings_near_is_attacked_in_full():
    """A weak attack leaves the base's points at 0.8 eps, refining goes to eps: how near that is has a closed form."""
    model, (x, y) = Tilted(), task()
    weak = PGD(steps=1, step_size=0.8, random_start=False, loss="margin")
    shard = attacked(between(Tilted(), model, attack=weak), range(60))["1"]
    score = (x.flatten(1) - 0.5) @ model.weight
    left = 1 - THREAT.eps * model.weight.abs().sum() / torch.where(y == 1, score, -score)
    assert shard["attacked"] == int(((left > 0) & (left <= 0.1)).sum()) > 0


@pytest.mark.parametrize("skip_above", [None, 0.1])
def test_the_base_is_refined_as_the_others_are(skip_above):
    model = Tilted()
    weak = PGD(steps=1, step_size=0.8, random_start=False, loss="margin")
    shard = attacked(between(model, attack=weak, skip_above=skip_above), range(60))["0"]
    assert shard["refined"] == shard["outcome"].count("refine") > 0
    assert robust(shard["outcome"]) == model.robust(*task())


def test_a_view_that_is_there_twice_is_refined_once():
    model = Tilted()
    once, twice = (screened(alone(views))["a"] for views in ({"base": model}, {"base": model, "base again": model}))
    refined = once["outcome"].count("robust")
    assert refined > 10
    assert twice["backwards"] - once["backwards"] == 3 * refined  # the second attack, and no second refinement


def test_skipping_nothing_attacks_every_image_that_no_known_point_and_no_refinement_breaks():
    shard = attacked(between(Tilted(), Tilted(0.5), skip_above=None), range(60))["1"]
    assert shard["skipped"] == 0
    assert shard["refined"] == shard["outcome"].count("refine") > 0
    assert shard["attacked"] == sum(word in ("robust", "pgd") for word in shard["outcome"])


def test_where_refining_meets_no_gradient_the_image_is_attacked_in_full():
    """A base that is fooled nowhere, and a candidate that is flat: only Square, which needs no gradient, can tell."""
    made = attacked(between(Tilted(), Flat(), skip_above=0.5, attack=Square(queries=30)), range(60))["1"]
    reached = attacked(between(Tilted(), Tilted(), skip_above=0.5, attack=Square(queries=30)), range(60))["1"]
    assert made["backwards"] > 0 < made["attacked"]
    assert made["attacked"] > reached["attacked"]


def test_a_note_counts_an_image_once_and_among_those_that_were_attacked():
    shard = attacked(alone({"one": Flat(), "two": Flat()}), range(60))["a"]
    (note,) = shard["notes"]
    robust = shard["outcome"].count("robust")  # what is broken needs no gradient
    assert (note["kind"], note["count"], note["total"]) == ("zero_gradient", robust, 60)
    square = {"kind": "square", "text": "x", "count": 3, "total": 12}
    part = {**shard, "attacked": 12, "notes": [{**note, "count": 3, "total": 12}, square]}
    clean = clean_score(0.5, [{"correct": [True] * 60, "seconds": 0.0}])
    counted, by_square = attacked_score(clean, [part], [True] * 60, 60).notes
    assert str(counted).startswith("3 of 12 images had a gradient of exactly 0")
    assert str(by_square) == "3 of 12 images x"


def test_points_are_refined_in_l1_too():
    made = between(Tilted(), Tilted(0.1), attack=APGD(steps=5, loss="margin"))
    assert screened(dataclasses.replace(made, threat=Threat("l1", 0.5)))["1"]["backwards"] > 0


def test_the_strongest_of_two_runs_is_kept():
    x, y = task(4)
    state = CandidateState("a", Tilted(), Experiment.open((x, y)).read(range(4)))
    tiny = Threat("linf", 1e-4)
    runs = [PGD(steps=3, loss="margin", step_size=step).run(Tilted(), x, y, threat=tiny) for step in (1, 1e-3)]
    for result in runs:
        state.enter(torch.arange(4), result, confirm=False)
    assert torch.equal(state.points, runs[0].images)
    torch.testing.assert_close(state.margin_at(state.points), state.margin)


def test_each_ratio_rechecks_other_images():
    shards = attacked(between(*(Tilted() for _ in range(5)), recheck=0.3), range(60))
    assert len({shards[label]["rechecked"] for label in "1234"}) > 1


def test_rechecking_notices_when_skipped_images_would_be_broken():
    """A base whose gradient is turned around is never fooled, and its points are no use: the rule must fail."""
    blind = attacked(between(Backwards(), Tilted(), recheck=0.5), range(60))["1"]
    assert blind["rechecked"] > 5
    assert blind["rechecked_broken"] > 0
    honest = attacked(between(Tilted(), Tilted(), recheck=0.5), range(60))["1"]
    assert honest["rechecked"] > 5
    assert honest["rechecked_broken"] == 0


def test_points_found_for_a_later_candidate_are_tried_on_the_earlier_ones():
    shard = attacked(between(Backwards(), Tilted(), skip_above=None), range(60))
    assert shard["0"]["outcome"].count("transfer from 1") > 10
    assert robust(shard["0"]["outcome"]) == robust(shard["1"]["outcome"])


def test_a_success_through_another_view_counts_only_if_it_fools_the_view_that_counts():
    other = Tilted(shift=100.0)
    made = alone({"counts": Tilted(), "other": other}, PGD(steps=1), Threat("linf", 1e-7))
    assert robust(attacked(made, range(60))["a"]["outcome"]) == [True] * 60


def test_the_base_is_attacked_once_for_all_searches_that_share_it():
    models = Tilted(), Tilted(0.1)
    shared = dataclasses.replace(between(*models), base_attacks={})
    first, calls = attacked(shared, range(60)), models[0].calls
    again = attacked(shared, range(60))
    assert models[0].calls - calls < 60
    assert [again[label]["outcome"] for label in "01"] == [first[label]["outcome"] for label in "01"]


@pytest.mark.parametrize(("size", "finish"), [(12, 100), (7, 2), (60, 1)])
def test_shards_of_any_size_give_the_same_outcomes(size, finish):
    made = between(Tilted(), Tilted(0.1), Tilted(0.3), recheck=0.2)
    whole = attacked(made, range(60))
    parts = attacked(made, *(range(at, min(at + size, 60)) for at in range(0, 60, size)), finish=finish)
    assert whole["1"]["attacked"] > 2
    for label in "012":
        for name in ("outcome", "transferred", "skipped", "rechecked", "attacked", "forwards", "backwards"):
            assert whole[label][name] == parts[label][name]


def test_what_is_pending_is_attacked_at_the_finish_and_nothing_else_is():
    made = between(Tilted(), Tilted(0.1), recheck=0.2)
    first = screened(made)
    left = pending_of([first], "1")
    assert first["1"]["attacked"] == 0
    assert left.drawn < left.pending
    assert {left.outcome[image] for image in left.pending} == {"robust"}
    assert not left.pending & set(first["1"]["skipped"])
    left_over = [image for image, word in left.outcome.items() if word == "robust"]
    assert sorted([*left.pending, *first["1"]["skipped"]]) == left_over
    pending = pending_images([first])
    last = finished(made, pending, {label: pending_of([first], label) for label in "01"})
    assert (last["0"]["attacked"], last["1"]["attacked"]) == (0, len(left.pending))
    assert last["1"]["rechecked"] == len(left.drawn)
    # Three steps, a start and a clean image each; the base's clean images are not classified again.
    assert (last["0"]["forwards"], last["1"]["forwards"]) == (0, 5 * len(pending))


def test_only_what_would_be_skipped_is_drawn_for_the_recheck():
    first = screened(between(Tilted(), Tilted(0.1), skip_above=None, recheck=0.5))["1"]
    assert (first["drawn"], first["skipped"]) == ([], [])
    assert first["pending"]


def test_at_the_finish_points_found_for_one_candidate_are_tried_on_the_next_before_it_is_attacked():
    made = between(Backwards(), Tilted(), Tilted(), recheck=1.0)
    first = screened(made)
    given = {label: pending_of([first], label) for label in "012"}
    last = finished(made, pending_images([first]), given)
    transferred = last["2"]["outcome"].count("transfer from 1")
    assert last["1"]["outcome"].count("pgd") == transferred == last["2"]["transferred"] > 10
    assert last["2"]["attacked"] == last["2"]["rechecked"] == len(given["2"].pending) - last["2"]["transferred"]
    assert last["2"]["rechecked_broken"] == 0


def test_a_skipped_image_that_a_point_found_at_the_finish_breaks_counts_as_broken():
    """The base looks the other way, so the others are skipped; the last one is then attacked in full and finds out."""
    made = between(Backwards(), Tilted(), Tilted(), recheck=0.0)
    first = screened(made)
    given = {label: pending_of([first], label) for label in "012"}
    given["2"] = given["2"]._replace(pending=frozenset(range(60)))
    last = finished(made, range(60), given)
    before, after = final_records([first], [last], range(60), "1")
    assert first["1"]["skipped"]
    assert before["outcome"].count("transfer from 2") > 10
    assert before["skipped"] == sum(before["outcome"][image] == "robust" for image in first["1"]["skipped"])
    assert before["skipped"] < len(first["1"]["skipped"])
    assert (after["outcome"], after["skipped"]) == ([], 0)


def test_points_are_tried_only_on_robust_images():
    x, y = task(4)
    model = Tilted()
    state = CandidateState("a", model, Experiment.open((x, y)).read(range(4)))
    everything = Points("b", torch.arange(4), 1 - x)
    assert (state.try_points(everything) < 0).all()
    assert state.outcome == ["transfer from b"] * 4
    before = model.calls
    assert state.try_points(everything).isinf().all()
    assert model.calls == before
