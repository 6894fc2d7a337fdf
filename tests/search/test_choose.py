import dataclasses
import json
from typing import Any

import pytest
from torch import Tensor, nn

from lipforge.errors import InputError, RunError
from lipforge.records import to_json
from lipforge.results import RatioScore, SearchResult, record
from lipforge.runs import RunDir
from lipforge.search.choose import choose_ratio
from lipforge.search.score import label_of
from tests.search.tilted import ATTACK, THREAT, Backwards, Tilted, task


def views(setting: Any) -> dict[str, nn.Module]:
    """A ratio is a tilt; each group of a mapping adds its own."""
    ratios = setting.values() if isinstance(setting, dict) else [setting]
    return {"only": Tilted(4 * sum(ratios))}


def untimed(result: SearchResult) -> SearchResult:
    scores = tuple(dataclasses.replace(score, seconds=0.0) for score in result.scores)
    return dataclasses.replace(result, scores=scores, seconds=0.0)


def search(**changes: Any) -> SearchResult:
    keywords: dict[str, Any] = {"metric": "non-adaptive", "ratios": (0.01, 0.02, 0.04), "shard_size": 20, **changes}
    return choose_ratio(views, task(), attack=ATTACK, threat=THREAT, **keywords)


def test_the_scores_are_those_of_the_closed_form_with_the_base_first():
    found = search()
    x, y = task()
    assert [one.ratio for one in found.scores] == [0.0, 0.01, 0.02, 0.04]
    for one in found.scores:
        assert not isinstance(one.ratio, dict)
        assert one.clean_accuracy == int((Tilted(4 * one.ratio)(x).argmax(dim=1) == y).sum()) / 60  # type: ignore[operator]
        if one.status in ("base", "attacked"):
            assert one.robust == Tilted(4 * one.ratio).robust(x, y)  # type: ignore[operator]
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


def test_a_significantly_worse_ratio_is_stopped_and_says_after_how_many_images():
    def views(setting: Any) -> dict[str, nn.Module]:
        return {"only": Wrong() if setting == 0.5 else Tilted(setting)}

    def stopped(rounds: int) -> RatioScore:
        keywords: dict[str, Any] = {"metric": "non-adaptive", "ratios": (0.01, 0.5), "shard_size": 20, "rounds": rounds}
        return choose_ratio(views, task(), attack=ATTACK, threat=THREAT, **keywords).scores[-1]

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
        (late,) = (tmp_path / "shards").glob("search-1-pending-*/0000.json")
        late.unlink()
        again = search(run=run)
        assert untimed(again) == untimed(alone)
        assert late.exists()
        kept = run.read_result("search")
    assert kept == again
    assert json.loads(to_json(record(kept)))["kind"] == "search"
    with pytest.raises(RunError, match="seed was 0, now 1"), RunDir.open(tmp_path) as run:
        search(run=run, seed=1)
    with pytest.raises(RunError, match="rounds was 1, now 2"), RunDir.open(tmp_path) as run:
        search(run=run, rounds=2)


def test_what_is_pending_is_attacked_in_shards_and_every_outcome_gets_back_to_its_image():
    """The base looks the other way, so that the images of the ratio are broken at the finish or not at all."""

    def views(setting: Any) -> dict[str, nn.Module]:
        return {"only": Tilted(4 * setting) if setting else Backwards()}

    settings: dict[str, Any] = {"metric": "non-adaptive", "ratios": (0.01,), "recheck": 1.0}
    settings.update(shard_size=20, rounds=1)
    ratio = choose_ratio(views, task(), attack=ATTACK, threat=THREAT, **settings).scores[1]
    assert ratio.attacked > 40
    assert ratio.outcome.count("pgd") > 10
    assert ratio.robust == Tilted(0.04).robust(*task())


def test_resuming_between_the_groups_counts_no_pass_twice(tmp_path):
    """The attack on the base is then repeated, for its points, but it has been counted."""
    alone = search(groups=("a", "b"), ratios=(0.01, 0.05))
    with RunDir.open(tmp_path) as run:
        search(groups=("a", "b"), ratios=(0.01, 0.05), run=run)
        for shard in (tmp_path / "shards").glob("search-group-*/0*.json"):
            shard.unlink()
        assert untimed(search(groups=("a", "b"), ratios=(0.01, 0.05), run=run)) == untimed(alone)


def test_progress_ends_with_the_accuracies_of_the_result(heard):
    """A round counts only once it is finished: until then images that will be broken look robust."""
    found = search(rounds=2, recheck=0.5, all_ratios=True)
    parts = [f"search: round {number} of 2{part}" for number in (1, 2) for part in ("", ", in full")]
    assert [one.label for one in heard] == ["search-clean", *parts]
    assert all(one.status == "attacked" for one in found.scores[1:])
    accuracies = [f"{one.label} {100 * one.robust_count / 60:.1f} %" for one in found.scores]
    shares, _, attack = str(heard[-1].status).rpartition("  ")
    assert shares == ", ".join(accuracies)
    assert attack == f"{found.scores[-1].label}: pgd"


@pytest.mark.parametrize(
    ("count", "rounds", "sizes"),
    [(60, 1, [60]), (60, 2, [20, 40]), (60, 4, [20, 20, 20]), (50, 2, [20, 30]), (30, None, [30])],
)
def test_rounds_are_whole_shards_and_about_as_many_each(heard, count, rounds, sizes):
    settings: dict[str, Any] = {"metric": "non-adaptive", "ratios": (0.01,), "shard_size": 20, "rounds": rounds}
    choose_ratio(views, task(count), attack=ATTACK, threat=THREAT, **settings)
    assert [one.total for one in heard if "round" in one.label and "in full" not in one.label] == sizes


def test_what_the_searches_of_groups_break_counts_in_all_comparisons():
    """Only the models of mappings give gradients that lead anywhere, and their points fool the others too."""

    def views(setting: Any) -> dict[str, nn.Module]:
        return {"only": Tilted(4 * sum(setting.values())) if isinstance(setting, dict) else Backwards(4 * setting)}

    def found(*groups: str) -> list[RatioScore]:
        settings: dict[str, Any] = {"metric": "non-adaptive", "ratios": (0.01,), "groups": groups, "shard_size": 60}
        return list(choose_ratio(views, task(), attack=ATTACK, threat=THREAT, **settings).scores)

    alone, scores = found(), found("a", "b")
    assert scores[0].robust_count < alone[0].robust_count
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
    single = max(
        one.robust_count for one in found.scores if one.status == "attacked" and not isinstance(one.ratio, dict)
    )
    assert found.best.robust_count >= single
    x, y = task()
    for one in mappings:
        assert isinstance(one.ratio, dict)
        if one.status == "attacked":
            assert one.robust == Tilted(4 * sum(one.ratio.values())).robust(x, y)
    assert to_json(found)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ratios": ()}, "at least one"),
        ({"ratios": (0.0,)}, "at least one"),
        ({"ratios": (1.5,)}, r"\(0, 1\]"),
        ({"ratios": (-0.5, 0.1)}, r"\(0, 1\]"),
        ({"skip_above": 0.0}, "skip_above must be above 0"),
        ({"recheck": 1.5}, "recheck in"),
        ({"rounds": 0}, "rounds must be at least 1"),
    ],
)
def test_bad_settings_are_refused(changes, message):
    with pytest.raises(InputError, match=message):
        search(**changes)


@pytest.mark.parametrize("groups", [(), ("a", "b")])
def test_the_cost_of_a_search_is_every_forward_of_every_model(groups):
    made: list[Tilted] = []

    def counted(setting: Any) -> dict[str, nn.Module]:
        tilt = 4 * sum(setting.values() if isinstance(setting, dict) else [setting])
        made.append(Tilted(tilt) if tilt else Backwards())  # a base that the points of the others cost forwards
        return {"only": made[-1]}

    x, y = task()
    found = choose_ratio(
        counted,
        (x, y),
        attack=ATTACK,
        threat=THREAT,
        metric="non-adaptive",
        ratios=(0.01, 0.02),
        groups=groups,
        show_progress=False,
    )
    assert found.forwards == sum(model.calls for model in made)
