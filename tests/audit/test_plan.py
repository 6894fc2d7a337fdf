import math
from dataclasses import replace

import pytest
import torch

from lipforge.attacks import PGD
from lipforge.audit import Plan, audit_plan
from lipforge.errors import InputError
from lipforge.types import Threat
from tests.nets import images


@pytest.mark.parametrize("classes", [2, 3, 4, 100])
def test_a_plan_runs_on_models_with_that_many_classes(classes):
    """dlr needs three classes, and there are no more targets than other classes."""
    weights = torch.randn(classes, 3, generator=torch.Generator().manual_seed(0))
    model = lambda x: x.mean(dim=(2, 3)) @ weights.T  # noqa: E731  # a classifier in one line
    x, plan = images(2), audit_plan(classes=classes)
    y = model(x).argmax(dim=1)
    for attack in (plan.adaptive, plan.longer):
        result = attack.run(model, x, y, threat=Threat("linf", "8/255"))
        assert set(result.outcome) <= {"robust", attack.name}


def test_standard_gives_nothing_up_and_tries_longer():
    fast, standard = audit_plan("fast"), audit_plan("standard")
    assert standard.adaptive.near == math.inf  # type: ignore[attr-defined]  # a plan of ours holds a Pursue
    assert fast.plain != standard.plain


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
