import dataclasses

import pytest
import torch
from torch import nn

from lipforge.attacks import APGD, PGD, Attack, Square
from lipforge.evaluation.contest import Contest, Entrant
from lipforge.evaluation.push import PUSH
from lipforge.evaluation.scores import (
    robust_fields,
)
from lipforge.evaluation.tally import Found, Tally, load
from lipforge.pairs import as_data
from lipforge.types import Threat
from tests.evaluation.tilted import ATTACK, THREAT, Backwards, Flat, Tilted, robust, task


def contest(*entrants: nn.Module, near: float | None = 0.1, audit: float = 0.0, attack: Attack = ATTACK) -> Contest:
    made = tuple(Entrant(str(number), {"only": entrant}) for number, entrant in enumerate(entrants))
    return Contest(made, as_data(task()), attack, THREAT, 0, near, audit)


@pytest.mark.parametrize("near", [None, 0.1])
def test_every_entrant_gets_the_outcome_that_the_closed_form_gives(near):
    models = [Tilted(), Tilted(0.02), Tilted(0.3)]
    shard = contest(*models, near=near).shard(range(60))
    x, y = task()
    assert [robust(shard[label]["outcome"]) for label in "012"] == [model.stands(x, y) for model in models]


def test_an_image_that_fell_on_the_lead_falls_to_the_same_point_for_one_forward():
    shard = contest(Tilted(), Tilted()).shard(range(60))
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
    without, pushed = (contest(lead, model, near=near).shard(range(60))["1"]["outcome"] for near in (1e-9, 0.05))
    assert without.count("push") == 0 < pushed.count("push")
    assert robust(pushed) == model.stands(*task()) != robust(without)


def test_what_a_push_brings_near_is_attacked_in_full():
    """A weak attack leaves the lead's points at 0.8 eps, a push goes to eps: how near that is has a closed form."""
    model, (x, y) = Tilted(), task()
    weak = PGD(steps=1, step=0.8, random=False, loss="margin")
    shard = contest(Tilted(), model, attack=weak).shard(range(60))["1"]
    score = (x.flatten(1) - 0.5) @ model.weight
    left = 1 - THREAT.eps * model.weight.abs().sum() / torch.where(y == 1, score, -score)
    assert shard["attacked"] == int(((left > 0) & (left <= 0.1)).sum()) > 0


@pytest.mark.parametrize("near", [None, 0.1])
def test_the_base_is_pushed_as_the_others_are(near):
    model = Tilted()
    weak = PGD(steps=1, step=0.8, random=False, loss="margin")
    shard = contest(model, attack=weak, near=near).shard(range(60))["0"]
    assert shard["pushed"] == shard["outcome"].count("push") > 0
    assert robust(shard["outcome"]) == model.stands(*task())


def test_sparing_nothing_attacks_every_image_that_no_known_point_and_no_push_fools():
    shard = contest(Tilted(), Tilted(0.5), near=None).shard(range(60))["1"]
    assert shard["spared"] == 0
    assert shard["pushed"] == shard["outcome"].count("push") > 0
    assert shard["attacked"] == sum(word in ("robust", "pgd") for word in shard["outcome"])


def test_where_a_push_meets_no_gradient_the_image_is_attacked_in_full():
    """A lead that is fooled nowhere, and an entrant that is flat: only Square, which needs no gradient, can tell."""
    made = contest(Tilted(), Flat(), near=0.5, attack=Square(queries=30)).shard(range(60))["1"]
    reached = contest(Tilted(), Tilted(), near=0.5, attack=Square(queries=30)).shard(range(60))["1"]
    assert made["backwards"] > 0 < made["attacked"]
    assert made["attacked"] > reached["attacked"]


def test_a_note_counts_an_image_once_and_among_those_that_were_attacked():
    flat = Entrant("a", {"one": Flat(), "two": Flat()})
    shard = Contest((flat,), as_data(task()), ATTACK, THREAT, 0, None, 0.0).shard(range(60))["a"]
    (note,) = shard["notes"]
    assert note.startswith("60 of 60 images had a gradient of exactly 0")
    part = {**shard, "attacked": 12, "square": 3, "notes": [note.replace("60 of 60", "3 of 12")]}
    counted, square = robust_fields([part], [True] * 60)["notes"]
    assert counted.startswith("3 of 12 images")
    assert "broke another 25.0 %" in square


def test_in_l1_nothing_is_pushed_and_what_is_near_is_attacked():
    made = contest(Tilted(), Tilted(0.1), attack=APGD(steps=5, loss="margin"))
    shard = dataclasses.replace(made, threat=Threat("l1", 0.5)).shard(range(60))["1"]
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
    shards = contest(*(Tilted() for _ in range(5)), audit=0.3).shard(range(60))
    assert len({shards[label]["checked"] for label in "1234"}) > 1


def test_the_audit_notices_when_spared_images_would_have_fallen():
    """A lead whose gradient is turned around is never fooled, and its points are no use: the rule must fail."""
    blind = contest(Backwards(), Tilted(), audit=0.5).shard(range(60))["1"]
    assert blind["checked"] > 5
    assert blind["failed"] > 0
    honest = contest(Tilted(), Tilted(), audit=0.5).shard(range(60))["1"]
    assert honest["checked"] > 5
    assert honest["failed"] == 0


def test_points_found_for_a_later_entrant_are_tried_on_the_earlier_ones():
    shard = contest(Backwards(), Tilted(), near=None).shard(range(60))
    assert shard["0"]["outcome"].count("found on 1") > 10
    assert robust(shard["0"]["outcome"]) == robust(shard["1"]["outcome"])


def test_a_success_through_another_view_counts_only_if_it_fools_the_view_that_counts():
    other = Tilted(shift=100.0)
    entrants = (Entrant("a", {"counts": Tilted(), "other": other}),)
    x, y = task()
    made = Contest(entrants, as_data((x, y)), PGD(steps=1), Threat("linf", 1e-7), 0, None, 0.0)
    assert robust(made.shard(range(60))["a"]["outcome"]) == [True] * 60


def test_the_lead_is_attacked_once_for_all_contests_that_share_it():
    models = Tilted(), Tilted(0.1)
    shared = dataclasses.replace(contest(*models), leads={})
    first, calls = shared.shard(range(60)), models[0].calls
    again = shared.shard(range(60))
    assert models[0].calls - calls < 60
    assert [again[label]["outcome"] for label in "01"] == [first[label]["outcome"] for label in "01"]


def test_shards_of_any_size_give_the_same_outcomes():
    whole = contest(Tilted(), Tilted(0.1), audit=0.2).shard(range(60))
    parts = [contest(Tilted(), Tilted(0.1), audit=0.2).shard(range(at, at + 12)) for at in range(0, 60, 12)]
    for label in "01":
        assert whole[label]["outcome"] == [word for part in parts for word in part[label]["outcome"]]
        for name in ("spared", "checked", "attacked", "forwards", "backwards"):
            assert whole[label][name] == sum(part[label][name] for part in parts)


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
