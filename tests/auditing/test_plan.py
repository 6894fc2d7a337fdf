import math
from dataclasses import replace

import pytest
import torch

from lipforge.attacks import APGD, PGD, TargetedAPGD
from lipforge.auditing.plan import TARGETED, EarlyStopped, Plan, audit_plan
from lipforge.errors import InputError
from lipforge.types import Threat
from tests.nets import images

THREAT = Threat("linf", 0.1)


def line(x):
    """Two logits whose difference is the mean of the image minus 1/2: a step of eps moves it by eps."""
    level = x.flatten(1).mean(dim=1) - 0.5
    return torch.stack([level, -level], dim=1)


def at(*levels):
    """Images of class 0 whose clean margin is twice the level."""
    x = torch.stack([torch.full((1, 4, 4), 0.5 + level) for level in levels])
    return x, torch.zeros(len(levels), dtype=torch.int64)


@pytest.mark.parametrize("classes", [2, 3, 4, 100])
def test_a_plan_runs_on_models_with_that_many_classes(classes):
    """dlr needs three classes, and there are no more targets than other classes."""
    weights = torch.randn(classes, 3, generator=torch.Generator().manual_seed(0))
    model = lambda x: x.mean(dim=(2, 3)) @ weights.T  # noqa: E731  # a classifier in one line
    x, plan = images(2), audit_plan(classes=classes)
    y = model(x).argmax(dim=1)
    assert plan.targeted is not None
    assert plan.targeted.targets == min(9, classes - 1)  # type: ignore[attr-defined]  # AutoAttack's APGD-T
    for attack in (plan.adaptive, plan.longer, plan.targeted):
        result = attack.run(model, x, y, threat=Threat("linf", "8/255"))
        assert set(result.outcome) <= {"robust", attack.name}


def test_standard_never_stops_early_and_tries_longer():
    fast, standard = audit_plan("fast"), audit_plan("standard")
    assert standard.adaptive.near == math.inf  # type: ignore[attr-defined]  # a plan of ours holds an EarlyStopped
    assert (fast.non_adaptive.name, standard.non_adaptive.name) == ("fast", "autoattack")
    assert fast.targeted == TargetedAPGD()
    assert standard.targeted is None, "it begins with AutoAttack"
    assert [TARGETED in plan.stages([]) for plan in (fast, standard)] == [True, False]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"refine": 0}, "refine, shard_size and check_queries"),
        ({"shard_size": 0}, "refine, shard_size and check_queries"),
        ({"square": -1}, "square and check_images"),
        ({"margin": 0.0}, "margin must lie between 0 and 1"),
        ({"margin": 1.0}, "margin must lie between 0 and 1"),
    ],
)
def test_a_plan_that_makes_no_sense_is_refused(changes, message):
    with pytest.raises(InputError, match=message):
        replace(Plan(PGD(), PGD(), PGD()), **changes)


def test_an_unknown_version_is_refused():
    with pytest.raises(InputError, match="version must be one of fast, standard, got 'slow'"):
        audit_plan("slow")
    with pytest.raises(InputError, match="classes must be at least 2"):
        audit_plan(classes=1)


def test_the_rest_is_spent_on_images_that_came_close():
    """One step of eps leaves 0.12 - 0.1 of 0.12, which is close, and 0.4 - 0.1 of 0.4, which is not."""
    x, y = at(0.12, 0.4)
    first = PGD(steps=1, step_size=1.0, random_start=False, loss="margin")
    result = EarlyStopped(first, (APGD(steps=5, loss="margin"),), near=0.3).run(line, x, y, threat=THREAT)
    assert result.backwards.tolist() == [1 + 5, 1]
    assert result.early_stopped.tolist() == [False, True]


def test_with_near_infinite_nothing_is_early_stopped():
    x, y = at(0.12, 0.4)
    first = PGD(steps=1, step_size=1.0, random_start=False, loss="margin")
    result = EarlyStopped(first, (APGD(steps=5, loss="margin"),), near=math.inf).run(line, x, y, threat=THREAT)
    assert result.backwards.tolist() == [6, 6]
    assert not result.early_stopped.any()


def test_what_the_first_attack_breaks_is_broken():
    x, y = at(0.05, 0.4)
    result = EarlyStopped(PGD(steps=1, step_size=1.0, loss="margin"), ()).run(line, x, y, threat=THREAT)
    assert result.broken.tolist() == [True, False]


def test_near_must_be_above_0():
    with pytest.raises(InputError, match="near must be above 0"):
        EarlyStopped(PGD(), (), near=0)
