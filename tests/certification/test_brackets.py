"""Certified and attacked accuracy from one call: what adds up, resumes, contradicts itself or is refused."""

import itertools
from dataclasses import replace

import pytest
import torch
from torch import nn

import lipforge as lf
from lipforge.certification import brackets
from lipforge.errors import BoundError
from lipforge.results import BracketResult, compare_brackets
from lipforge.results.bracket import bracket_fields
from lipforge.runs import RunDir
from lipforge.types import Threat
from tests.attacks.oracles import linear_oracle, small_images, small_net

THREAT = Threat("linf", 0.02)


def measured(**given) -> BracketResult:
    model = small_net()
    x, y = small_images(model)
    y[::6] = (y[::6] + 1) % 4  # misclassified from the start
    return lf.bracket(model, (x, y), THREAT, attack="pgd:steps=5", **given)


def test_every_image_has_one_outcome_and_the_bracket_holds():
    found = measured()
    assert found.outcome.count("misclassified") == 4
    assert found.certified_accuracy <= found.robust_accuracy <= found.clean_accuracy == 20 / 24
    assert {"certified", "misclassified"} <= set(found.outcome) <= {"certified", "unknown", "pgd", "misclassified"}
    for word, margin in zip(found.outcome, found.margin, strict=True):
        assert (word == "misclassified") == (margin is None)
        assert margin is None or (word == "certified") == (margin > 0)


def test_the_progress_bar_says_early_how_long_crown_may_take(monkeypatch):
    clock = itertools.count()
    monkeypatch.setattr(brackets.time, "perf_counter", lambda: float(next(clock)))
    said: list[str] = []
    pace = brackets._Pace(600.0, said.append)
    pace(10)  # a second for a sixtieth of an image
    pace(30)
    assert said == ["crown, at most about 1.0 min per image", "crown, at most about 30 s per image"]
    monkeypatch.undo()
    monkeypatch.setattr(brackets.Watch, "__call__", lambda watch, text: said.append(text))
    said.clear()
    measured()
    assert [text for text in said if text.startswith("crown, at most about")]


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_a_linear_classifier_is_certified_exactly_where_its_closed_form_is_positive(norm):
    model, x, y = linear_oracle()
    with torch.no_grad():
        dual = float(model.weight.flatten().norm(p={"linf": 1, "l2": 2}[norm]))
        eps = 0.6 * float(model.worst_margin(x, y, 0.0, norm).median()) / 2 / dual
    expected = (model.worst_margin(x, y, eps, norm) > 0).tolist()
    threat = Threat(norm, eps)
    network = nn.Sequential(nn.Flatten(), nn.Linear(18, 2)).double()
    with torch.no_grad():
        weight, bias = network.parameters()
        weight.copy_(torch.stack([model.weight.flatten(), -model.weight.flatten()]))
        bias.copy_(-0.5 * model.weight.sum() * torch.tensor([1, -1]))
    found = lf.bracket(network.eval(), (x, y), threat, attack="pgd")
    assert 0 < sum(expected) < len(expected)
    assert found.certified == expected == found.robust
    assert found.quick == sum(expected)


def test_an_interrupted_bracket_resumes_and_ends_as_if_it_had_not_been(tmp_path, monkeypatch):
    whole, real, left = measured(), brackets._bracket_shard, [1]

    def interrupted(*given):
        if not left:
            raise KeyboardInterrupt
        left.pop()
        return real(*given)

    run = RunDir.open(tmp_path / "run")
    monkeypatch.setattr(brackets, "_bracket_shard", interrupted)
    with pytest.raises(KeyboardInterrupt):
        measured(run=run)
    left.append(1)
    resumed = measured(run=run)
    assert not left  # one shard was left to compute
    resumed, whole = (replace(one, seconds=0.0, attack_seconds=0.0) for one in (resumed, whole))
    assert resumed == whole


def test_an_image_that_is_certified_and_broken_stops_the_run_and_is_named(monkeypatch):
    model = small_net()
    x, y = small_images(model, 8)
    real = brackets._least_margins
    monkeypatch.setattr(brackets, "_least_margins", lambda *given, **more: real(*given, **more).abs() + 0.1)
    with pytest.raises(BoundError, match=r"image \d is certified with a margin of at least .* and pgd broke it"):
        lf.bracket(model, (x, y), Threat("linf", 0.1), attack="pgd")


def with_outcome(label: str, *outcome: str) -> BracketResult:
    return replace(measured(), label=label, **bracket_fields(outcome), margin=(None,) * len(outcome))


def test_brackets_decide_only_where_they_do_not_overlap():
    base = with_outcome("base", "certified", "pgd", "pgd", "pgd")
    better = with_outcome("better", "certified", "certified", "unknown", "pgd")
    open_ended = with_outcome("open", "certified", "unknown", "unknown", "pgd")
    assert compare_brackets(base, better).decides == "candidate"
    assert compare_brackets(better, base).decides == "base"
    assert compare_brackets(base, open_ended).decides is None
    assert "equally robust, proven" in str(compare_brackets(base, base))
    found = compare_brackets(base, better)
    assert (found.least.difference, found.most.difference) == (0.25, 0.5)
    assert "better is more robust, proven" in str(found)
    assert "decide nothing" in str(compare_brackets(base, open_ended))
