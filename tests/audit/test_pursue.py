import math

import pytest
import torch

from lipforge.attacks import APGD, PGD
from lipforge.audit.pursue import Pursue
from lipforge.audit.refine import Refine
from lipforge.errors import InputError
from lipforge.types import Threat

THREAT = Threat("linf", 0.1)


def line(x):
    """Two logits whose difference is the mean of the image minus 1/2: a step of eps moves it by eps."""
    level = x.flatten(1).mean(dim=1) - 0.5
    return torch.stack([level, -level], dim=1)


def at(*levels):
    """Images of class 0 whose clean margin is twice the level."""
    x = torch.stack([torch.full((1, 4, 4), 0.5 + level) for level in levels])
    return x, torch.zeros(len(levels), dtype=torch.int64)


def test_the_rest_is_spent_on_images_that_came_near():
    """One step of eps leaves 0.12 - 0.1 of 0.12, which is near, and 0.4 - 0.1 of 0.4, which is not."""
    x, y = at(0.12, 0.4)
    first = PGD(steps=1, step=1.0, random=False, loss="margin")
    result = Pursue(first, (APGD(steps=5, loss="margin"),), near=0.3).run(line, x, y, threat=THREAT)
    assert result.backwards.tolist() == [1 + 5, 1]
    assert result.given_up.tolist() == [False, True]


def test_with_an_infinite_reach_nothing_is_given_up():
    x, y = at(0.12, 0.4)
    first = PGD(steps=1, step=1.0, random=False, loss="margin")
    result = Pursue(first, (APGD(steps=5, loss="margin"),), near=math.inf).run(line, x, y, threat=THREAT)
    assert result.backwards.tolist() == [6, 6]
    assert not result.given_up.any()


def test_what_the_first_attack_breaks_is_broken():
    x, y = at(0.05, 0.4)
    result = Pursue(PGD(steps=1, step=1.0, loss="margin"), ()).run(line, x, y, threat=THREAT)
    assert result.fooled.tolist() == [True, False]


def test_a_reach_of_nothing_is_refused():
    with pytest.raises(InputError, match="near must be above 0"):
        Pursue(PGD(), (), near=0)


def test_refine_starts_where_it_is_told():
    """From the edge of the ball one small step is enough; from the clean image it is not."""
    x, y = at(0.095)
    threat = Threat("linf", 0.1)
    near = Refine(x - 0.094, steps=1, step=0.05).run(line, x, y, threat=threat)
    far = Refine(x, steps=1, step=0.05).run(line, x, y, threat=threat)
    assert (near.fooled.item(), far.fooled.item()) == (True, False)


def test_refine_without_steps_only_judges():
    x, y = at(0.05, 0.4)
    result = Refine(x - 0.1, steps=0).run(line, x, y, threat=THREAT)
    assert result.fooled.tolist() == [True, False]
    assert result.backwards.sum() == 0


def test_refine_stays_inside_the_threat_whatever_it_starts_from():
    x, y = at(0.4)
    result = Refine(torch.zeros_like(x), steps=1).run(line, x, y, threat=THREAT)
    assert not result.fooled.any()
    assert (result.images - x).abs().max() <= 0.1 + 1e-6
