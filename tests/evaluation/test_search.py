import dataclasses
import json
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lipforge.attacks import APGD, PGD, Attack, Square
from lipforge.errors import InputError, RunError
from lipforge.evaluation.contest import Contest, Entrant
from lipforge.evaluation.push import PUSH
from lipforge.evaluation.scores import (
    RatioScore,
    SearchResult,
    best_of,
    choose,
    clean_score,
    doubts,
    label_of,
    robust_fields,
)
from lipforge.evaluation.search import neighbourhood, search_ratio
from lipforge.evaluation.tally import Found, Tally, load
from lipforge.pairs import as_data
from lipforge.records import to_json
from lipforge.runs import RunDir, record
from lipforge.types import Threat
from tests.nets import images

THREAT = Threat("linf", 0.02)
ATTACK = PGD(steps=3, step=2.0, loss="margin")


class Tilted(nn.Module):
    """Two classes by one weight vector, tilted by `angle` toward another: what stands is known in closed form."""

    def __init__(self, angle: float = 0.0, shift: float = 0.0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(7)
        first, second = torch.randn(2, 48, generator=generator)
        self.weight = nn.Parameter(first + angle * second, requires_grad=False)
        self.shift = shift
        self.seen = [0]  # no plain value: what changes as a model runs is no setting of it
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        self.seen[0] += len(x)
        score = (x.flatten(1) - 0.5) @ self.weight + self.shift
        return torch.stack([-score, score], dim=1)

    @property
    def calls(self) -> int:
        return self.seen[0]

    def stands(self, x: Tensor, y: Tensor) -> list[bool]:
        """The score must beat eps times the l1 norm of the weights; the images are so far inside [0, 1]."""
        score = (x.flatten(1) - 0.5) @ self.weight + self.shift
        return (torch.where(y == 1, score, -score) > THREAT.eps * self.weight.abs().sum()).tolist()


def task(count: int = 60) -> tuple[Tensor, Tensor]:
    x = 0.1 + 0.8 * images(count, size=4)
    return x, Tilted()(x).argmax(dim=1)


def views(setting: Any) -> dict[str, nn.Module]:
    """A ratio is a tilt; each group of a mapping adds its own."""
    ratios = setting.values() if isinstance(setting, dict) else [setting]
    return {"only": Tilted(4 * sum(ratios))}


def contest(*entrants: nn.Module, near: float | None = 0.1, audit: float = 0.0, attack: Attack = ATTACK) -> Contest:
    made = tuple(Entrant(str(number), {"only": entrant}) for number, entrant in enumerate(entrants))
    return Contest(made, as_data(task()), attack, THREAT, 0, near, audit)


def robust(outcome: list[str]) -> list[bool]:
    return [word == "robust" for word in outcome]


def untimed(result: SearchResult) -> SearchResult:
    scores = tuple(dataclasses.replace(score, seconds=0.0) for score in result.scores)
    return dataclasses.replace(result, scores=scores, seconds=0.0)


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


class Flat(Tilted):
    """The same classifier without a gradient."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.detach()) + 0 * x.flatten(1).sum(dim=1, keepdim=True)


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


class Backwards(Tilted):
    """The same classifier with its gradient turned around: attacks on it walk away from the boundary."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(2 * x.detach() - x) if x.requires_grad else super().forward(x)


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


@pytest.mark.parametrize("groups", [(), ("a", "b")])
def test_the_cost_of_a_search_is_every_forward_of_every_model(groups):
    made: list[Tilted] = []

    def counted(setting: Any) -> dict[str, nn.Module]:
        tilt = 4 * sum(setting.values() if isinstance(setting, dict) else [setting])
        made.append(Tilted(tilt) if tilt else Backwards())  # a base that the points of the others cost forwards
        return {"only": made[-1]}

    x, y = task()
    found = search_ratio(
        counted, (x, y), ATTACK, THREAT, metric="plain", ratios=(0.01, 0.02), groups=groups, show=False
    )
    assert found.forwards == sum(model.calls for model in made)


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


@pytest.mark.parametrize("stands", [10, 9])
def test_without_a_ratio_that_beats_the_base_the_choice_is_no_forging(stands):
    chosen, reason = choose([score(0, 20, 10), score(2**-7, 20, stands)])
    assert chosen == 0.0
    assert reason.startswith("chose 0, no forging: no ratio keeps more images than base")


def test_of_equal_ratios_the_one_with_the_better_clean_accuracy_and_then_the_gentler_one_wins():
    assert best_of([score(2**-8, 18, 12), score(2**-7, 19, 12)]).ratio == 2**-7
    assert best_of([score(2**-8, 19, 12), score(2**-7, 19, 12)]).ratio == 2**-8


def search(**changes: Any) -> SearchResult:
    keywords: dict[str, Any] = {"metric": "plain", "ratios": (0.01, 0.02, 0.04), "shard_size": 20, **changes}
    return search_ratio(views, task(), ATTACK, THREAT, **keywords)


def test_the_scores_are_those_of_the_closed_form_with_the_base_first():
    found = search()
    x, y = task()
    assert [one.ratio for one in found.scores] == [0.0, 0.01, 0.02, 0.04]
    for one in found.scores:
        assert not isinstance(one.ratio, dict)
        assert one.clean_accuracy == int((Tilted(4 * one.ratio)(x).argmax(dim=1) == y).sum()) / 60  # type: ignore[operator]
        if one.status in ("base", "attacked"):
            assert one.robust == Tilted(4 * one.ratio).stands(x, y)  # type: ignore[operator]
            assert one.robust_accuracy == sum(one.robust) / 60
    assert found.count == 60
    assert found.forwards == sum(one.forwards for one in found.scores)


def test_ratios_far_from_the_best_clean_one_are_not_attacked():
    """The labels are those of the base, so the clean accuracy falls with the tilt."""
    status = {one.ratio: one.status for one in search(ratios=(0.001, 0.3, 0.6)).scores}
    assert status == {0.0: "base", 0.001: "attacked", 0.3: "attacked", 0.6: "not attacked"}
    every = {one.ratio: one.status for one in search(ratios=(0.001, 0.3, 0.6), all_ratios=True, rounds=1).scores}
    assert every == {0.0: "base", 0.001: "attacked", 0.3: "attacked", 0.6: "attacked"}


class Wrong(Tilted):
    """The two classes mistaken for each other."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).flip(1)


def test_a_hopeless_ratio_is_stopped_and_says_after_how_many_images():
    def views(setting: Any) -> dict[str, nn.Module]:
        return {"only": Wrong() if setting == 0.5 else Tilted(setting)}

    def stopped(rounds: int) -> RatioScore:
        keywords: dict[str, Any] = {"metric": "plain", "ratios": (0.01, 0.5), "shard_size": 20, "rounds": rounds}
        return search_ratio(views, task(), ATTACK, THREAT, **keywords).scores[-1]

    assert (stopped(rounds=3).status, stopped(rounds=3).count) == ("stopped", 20)
    assert len(stopped(rounds=3).outcome) == 20
    comparison = stopped(rounds=3).against_base
    assert comparison is not None
    assert comparison.count == 20
    assert stopped(rounds=1).status == "attacked"


def test_a_run_resumes_to_the_same_result_and_keeps_it(tmp_path):
    alone = search()
    with RunDir.open(tmp_path) as run:
        first = search(run=run)
        next((tmp_path / "shards" / "search-1").glob("0000.json")).unlink()
        again = search(run=run)
        assert untimed(first) == untimed(again) == untimed(alone)
        kept = run.read_result("search")
    assert kept["kind"] == "search"
    assert kept["chosen"] == first.chosen
    assert kept == json.loads(to_json(record(again)))
    with pytest.raises(RunError, match="seed was 0, now 1"), RunDir.open(tmp_path) as run:
        search(run=run, seed=1)


def test_what_falls_in_the_contests_of_groups_falls_for_all_comparisons():
    """Only the models of mappings give gradients that lead anywhere, and their points fool the others too."""

    def views(setting: Any) -> dict[str, nn.Module]:
        return {"only": Tilted(4 * sum(setting.values())) if isinstance(setting, dict) else Backwards(4 * setting)}

    def found(*groups: str) -> list[RatioScore]:
        settings: dict[str, Any] = {"metric": "plain", "ratios": (0.01,), "groups": groups, "shard_size": 60}
        return list(search_ratio(views, task(), ATTACK, THREAT, **settings).scores)

    alone, scores = found(), found("a", "b")
    assert scores[0].standing < alone[0].standing
    assert scores[0].backwards == alone[0].backwards > 0
    compared = [one.against_base for one in scores[1:]]
    assert [one.base_accuracy for one in compared if one is not None] == [scores[0].robust_accuracy] * len(compared)


def test_groups_are_refined_one_after_the_other_and_never_get_worse():
    found = search(groups=("a", "b"), ratios=(0.01, 0.05))
    base = found.scores[0].robust_accuracy
    compared = [one.against_base for one in found.scores[1:] if one.count == 60]
    assert [one.base_accuracy for one in compared if one is not None] == [base] * len(compared)
    mappings = [one for one in found.scores if isinstance(one.ratio, dict)]
    assert {label_of(one.ratio).split("=")[0] for one in mappings} == {"a"}
    single = max(one.standing for one in found.scores if one.status == "attacked" and not isinstance(one.ratio, dict))
    assert found.best.standing >= single
    x, y = task()
    for one in mappings:
        assert isinstance(one.ratio, dict)
        if one.status == "attacked":
            assert one.robust == Tilted(4 * sum(one.ratio.values())).stands(x, y)
    assert to_json(found)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ratios": ()}, "at least one"),
        ({"ratios": (0.0,)}, "at least one"),
        ({"ratios": (1.5,)}, r"\(0, 1\]"),
        ({"ratios": (-0.5, 0.1)}, r"\(0, 1\]"),
        ({"near": 0.0}, "near must be above 0"),
        ({"audit": 1.5}, "audit lie in"),
        ({"rounds": 0}, "rounds must be at least 1"),
    ],
)
def test_bad_settings_are_refused(changes, message):
    with pytest.raises(InputError, match=message):
        search(**changes)
