import dataclasses
from typing import Any

import pytest
import torch
from torch import nn

from lipforge.attacks import APGD, PGD, Attack, Square
from lipforge.evaluation.contest import Contest, Entrant
from lipforge.evaluation.push import PUSH
from lipforge.evaluation.scores import robust_fields
from lipforge.evaluation.screening import due_of, screened, settled
from lipforge.evaluation.tally import Found, Tally, load
from lipforge.pairs import as_data
from lipforge.types import Threat
from tests.evaluation.tilted import ATTACK, THREAT, Backwards, Flat, Tilted, robust, task


def contest(*entrants: nn.Module, near: float | None = 0.1, audit: float = 0.0, attack: Attack = ATTACK) -> Contest:
    made = tuple(Entrant(str(number), {"only": entrant}) for number, entrant in enumerate(entrants))
    return Contest(made, as_data(task()), attack, THREAT, 0, near, audit)


def judged(made: Contest, *shards: range, finish: int = 100) -> dict[str, dict[str, Any]]:
    """For each entrant its outcomes and sums over both passes; `finish` images are attacked together at the finish."""
    first = [made.screen(images) for images in shards]
    due, before = due_of(first), {entrant.label: screened(first, entrant.label) for entrant in made.entrants}
    last = [made.finish(due[at : at + finish], before) for at in range(0, len(due), finish)]
    found = {}
    for label in before:
        records = settled(first, last, due, label)
        counts = [name for name, value in records[0].items() if isinstance(value, int | float) and name != "first"]
        found[label] = {name: sum(record[name] for record in records) for name in counts}
        for name in ("outcome", "notes"):
            found[label][name] = [item for record in records for item in record[name]]
    return found


@pytest.mark.parametrize("near", [None, 0.1])
def test_every_entrant_gets_the_outcome_that_the_closed_form_gives(near):
    models = [Tilted(), Tilted(0.02), Tilted(0.3)]
    shard = judged(contest(*models, near=near), range(60))
    x, y = task()
    assert [robust(shard[label]["outcome"]) for label in "012"] == [model.stands(x, y) for model in models]


def test_an_image_that_fell_on_the_lead_falls_to_the_same_point_for_one_forward():
    shard = judged(contest(Tilted(), Tilted()), range(60))
    fallen = shard["0"]["outcome"].count("pgd")
    assert fallen > 10
    assert shard["1"]["outcome"].count("found on 0") == shard["1"]["tried"] == fallen
    near = [word for word in shard["1"]["outcome"] if word == "robust"]
    # A clean look and a look at the lead's point each; pushes and attacks only near the boundary.
    pushed, rest = divmod(shard["1"]["backwards"] - 3 * shard["1"]["attacked"], PUSH)
    assert (rest, 0 < pushed < len(near)) == (0, True)
    assert shard["1"]["forwards"] == 60 + 60 + (PUSH + 2) * pushed + 5 * shard["1"]["attacked"]
    assert shard["1"]["spared"] + shard["1"]["attacked"] == len(near)
    assert shard["1"]["spared"] > shard["1"]["attacked"]


def test_a_push_finds_what_the_points_of_the_lead_do_not_show():
    lead, model = Tilted(), Tilted(0.5)
    without, pushed = (judged(contest(lead, model, near=near), range(60))["1"]["outcome"] for near in (1e-9, 0.05))
    assert without.count("push") == 0 < pushed.count("push")
    assert robust(pushed) == model.stands(*task()) != robust(without)


def test_what_a_push_brings_near_is_attacked_in_full():
    """A weak attack leaves the lead's points at 0.8 eps, a push goes to eps: how near that is has a closed form."""
    model, (x, y) = Tilted(), task()
    weak = PGD(steps=1, step=0.8, random=False, loss="margin")
    shard = judged(contest(Tilted(), model, attack=weak), range(60))["1"]
    score = (x.flatten(1) - 0.5) @ model.weight
    left = 1 - THREAT.eps * model.weight.abs().sum() / torch.where(y == 1, score, -score)
    assert shard["attacked"] == int(((left > 0) & (left <= 0.1)).sum()) > 0


@pytest.mark.parametrize("near", [None, 0.1])
def test_the_base_is_pushed_as_the_others_are(near):
    model = Tilted()
    weak = PGD(steps=1, step=0.8, random=False, loss="margin")
    shard = judged(contest(model, attack=weak, near=near), range(60))["0"]
    assert shard["pushed"] == shard["outcome"].count("push") > 0
    assert robust(shard["outcome"]) == model.stands(*task())


def test_a_view_that_is_there_twice_is_pushed_once():
    model = Tilted()
    once, twice = (
        Contest((Entrant("a", views),), as_data(task()), ATTACK, THREAT, 0, None, 0.0).screen(range(60))["a"]
        for views in ({"base": model}, {"base": model, "base again": model})
    )
    pushed = once["outcome"].count("robust")
    assert pushed > 10
    assert twice["backwards"] - once["backwards"] == 3 * pushed  # the second attack, and no second push


def test_sparing_nothing_attacks_every_image_that_no_known_point_and_no_push_fools():
    shard = judged(contest(Tilted(), Tilted(0.5), near=None), range(60))["1"]
    assert shard["spared"] == 0
    assert shard["pushed"] == shard["outcome"].count("push") > 0
    assert shard["attacked"] == sum(word in ("robust", "pgd") for word in shard["outcome"])


def test_where_a_push_meets_no_gradient_the_image_is_attacked_in_full():
    """A lead that is fooled nowhere, and an entrant that is flat: only Square, which needs no gradient, can tell."""
    made = judged(contest(Tilted(), Flat(), near=0.5, attack=Square(queries=30)), range(60))["1"]
    reached = judged(contest(Tilted(), Tilted(), near=0.5, attack=Square(queries=30)), range(60))["1"]
    assert made["backwards"] > 0 < made["attacked"]
    assert made["attacked"] > reached["attacked"]


def test_a_note_counts_an_image_once_and_among_those_that_were_attacked():
    flat = Entrant("a", {"one": Flat(), "two": Flat()})
    shard = judged(Contest((flat,), as_data(task()), ATTACK, THREAT, 0, None, 0.0), range(60))["a"]
    (note,) = shard["notes"]
    assert note.startswith("60 of 60 images had a gradient of exactly 0")
    part = {**shard, "attacked": 12, "square": 3, "notes": [note.replace("60 of 60", "3 of 12")]}
    counted, square = robust_fields([part], [True] * 60)["notes"]
    assert counted.startswith("3 of 12 images")
    assert "broke another 25.0 %" in square


def test_in_l1_nothing_is_pushed_and_what_is_near_is_attacked():
    made = contest(Tilted(), Tilted(0.1), attack=APGD(steps=5, loss="margin"))
    shard = judged(dataclasses.replace(made, threat=Threat("l1", 0.5)), range(60))["1"]
    assert shard["pushed"] == 0 < shard["attacked"]


def test_the_strongest_of_two_runs_is_kept():
    x, y = task(4)
    tally = Tally("a", Tilted(), load(as_data((x, y)), range(4), None))
    tiny = Threat("linf", 1e-4)
    runs = [PGD(steps=3, loss="margin", step=step).run(Tilted(), x, y, threat=tiny) for step in (1, 1e-3)]
    for result in runs:
        tally.take(torch.arange(4), result, confirm=False)
    assert torch.equal(tally.points, runs[0].images)
    torch.testing.assert_close(-tally.gap_at(tally.points), tally.closest)


def test_each_ratio_checks_other_images():
    shards = judged(contest(*(Tilted() for _ in range(5)), audit=0.3), range(60))
    assert len({shards[label]["checked"] for label in "1234"}) > 1


def test_the_audit_notices_when_spared_images_would_have_fallen():
    """A lead whose gradient is turned around is never fooled, and its points are no use: the rule must fail."""
    blind = judged(contest(Backwards(), Tilted(), audit=0.5), range(60))["1"]
    assert blind["checked"] > 5
    assert blind["failed"] > 0
    honest = judged(contest(Tilted(), Tilted(), audit=0.5), range(60))["1"]
    assert honest["checked"] > 5
    assert honest["failed"] == 0


def test_points_found_for_a_later_entrant_are_tried_on_the_earlier_ones():
    shard = judged(contest(Backwards(), Tilted(), near=None), range(60))
    assert shard["0"]["outcome"].count("found on 1") > 10
    assert robust(shard["0"]["outcome"]) == robust(shard["1"]["outcome"])


def test_a_success_through_another_view_counts_only_if_it_fools_the_view_that_counts():
    other = Tilted(shift=100.0)
    entrants = (Entrant("a", {"counts": Tilted(), "other": other}),)
    x, y = task()
    made = Contest(entrants, as_data((x, y)), PGD(steps=1), Threat("linf", 1e-7), 0, None, 0.0)
    assert robust(judged(made, range(60))["a"]["outcome"]) == [True] * 60


def test_the_lead_is_attacked_once_for_all_contests_that_share_it():
    models = Tilted(), Tilted(0.1)
    shared = dataclasses.replace(contest(*models), leads={})
    first, calls = judged(shared, range(60)), models[0].calls
    again = judged(shared, range(60))
    assert models[0].calls - calls < 60
    assert [again[label]["outcome"] for label in "01"] == [first[label]["outcome"] for label in "01"]


@pytest.mark.parametrize(("size", "finish"), [(12, 100), (7, 2), (60, 1)])
def test_shards_of_any_size_give_the_same_outcomes(size, finish):
    made = contest(Tilted(), Tilted(0.1), Tilted(0.3), audit=0.2)
    whole = judged(made, range(60))
    parts = judged(made, *(range(at, min(at + size, 60)) for at in range(0, 60, size)), finish=finish)
    assert whole["1"]["attacked"] > 2
    for label in "012":
        for name in ("outcome", "tried", "spared", "checked", "attacked", "forwards", "backwards"):
            assert whole[label][name] == parts[label][name]


def test_what_is_due_is_attacked_at_the_finish_and_nothing_else_is():
    made = contest(Tilted(), Tilted(0.1), audit=0.2)
    first = made.screen(range(60))
    left = screened([first], "1")
    assert first["1"]["attacked"] == 0
    assert left.drawn < left.due
    assert {left.outcome[image] for image in left.due} == {"robust"}
    assert not left.due & set(first["1"]["spared"])
    assert sorted([*left.due, *first["1"]["spared"]]) == [i for i, word in left.outcome.items() if word == "robust"]
    due = due_of([first])
    last = made.finish(due, {label: screened([first], label) for label in "01"})
    assert (last["0"]["attacked"], last["1"]["attacked"]) == (0, len(left.due))
    assert last["1"]["checked"] == len(left.drawn)
    # Three steps, a start and a clean image each; the clean images of the lead are not looked at again.
    assert (last["0"]["forwards"], last["1"]["forwards"]) == (0, 5 * len(due))


def test_only_what_the_rule_would_spare_is_drawn_for_the_check():
    first = contest(Tilted(), Tilted(0.1), near=None, audit=0.5).screen(range(60))["1"]
    assert (first["drawn"], first["spared"]) == ([], [])
    assert first["due"]


def test_at_the_finish_points_found_for_one_entrant_are_tried_on_the_next_before_it_is_attacked():
    made = contest(Backwards(), Tilted(), Tilted(), audit=1.0)
    first = made.screen(range(60))
    given = {label: screened([first], label) for label in "012"}
    last = made.finish(due_of([first]), given)
    assert last["1"]["outcome"].count("pgd") == last["2"]["outcome"].count("found on 1") == last["2"]["tried"] > 10
    assert last["2"]["attacked"] == last["2"]["checked"] == len(given["2"].due) - last["2"]["tried"]
    assert last["2"]["failed"] == 0


def test_a_spared_image_that_falls_to_a_point_found_at_the_finish_counts_as_fallen():
    """The lead looks the other way, so the others are spared; the last one is then attacked in full and finds out."""
    made = contest(Backwards(), Tilted(), Tilted(), audit=0.0)
    first = made.screen(range(60))
    given = {label: screened([first], label) for label in "012"}
    given["2"] = dataclasses.replace(given["2"], due=frozenset(range(60)))
    last = made.finish(range(60), given)
    before, after = settled([first], [last], range(60), "1")
    assert first["1"]["spared"]
    assert before["outcome"].count("found on 2") > 10
    assert before["spared"] == sum(before["outcome"][image] == "robust" for image in first["1"]["spared"])
    assert before["spared"] < len(first["1"]["spared"])
    assert (after["outcome"], after["spared"]) == ([], 0)


def test_a_tally_tries_points_only_on_images_that_stand():
    x, y = task(4)
    model = Tilted()
    tally = Tally("a", model, load(as_data((x, y)), range(4), None))
    everything = Found("b", torch.arange(4), 1 - x)
    assert (tally.attempt(everything) < 0).all()
    assert tally.outcome == ["found on b"] * 4
    before = model.calls
    assert tally.attempt(everything).isinf().all()
    assert model.calls == before
