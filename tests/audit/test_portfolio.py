from dataclasses import replace

import pytest
import torch

from lipforge.attacks import APGD, PGD, Escalate
from lipforge.audit import Plan
from lipforge.audit.front import Front
from lipforge.audit.portfolio import even_budget, run_portfolio
from lipforge.audit.pursue import Pursue
from lipforge.audit.stages import PLAIN
from lipforge.audit.subjects import pair_of
from lipforge.types import Threat

THREAT = Threat("linf", 0.1)


def line(x):
    """Two logits whose difference is the mean of the image minus 1/2: an image falls if eps exceeds its level."""
    level = x.flatten(1).mean(dim=1) - 0.5
    return torch.stack([level, -level], dim=1)


def at(*levels):
    """Images of class 0."""
    x = torch.stack([torch.full((1, 4, 4), 0.5 + level) for level in levels])
    return x, torch.zeros(len(levels), dtype=torch.int64)


def fronts(base=line, candidate=line, levels=(0.3, 0.4)):
    pair, (x, y) = pair_of(base, candidate), at(*levels)
    return (
        Front(side, x, y, torch.arange(len(x)), THREAT, x.clone(), lambda stage: None)
        for side in (pair.base, pair.candidate)
    )


@pytest.mark.parametrize("gap", [9, 15, 250, 1900])
def test_a_gap_in_gradients_is_made_up_for_however_wide(gap):
    base, candidate = fronts()
    candidate.backwards += 500 + gap
    base.backwards += 500
    even_budget(base, candidate, seed=0)
    assert abs(base.effort - candidate.effort) < 10
    assert candidate.effort == 500 + gap


def test_what_the_probe_of_a_fast_attack_breaks_counts_as_broken_by_square():
    def masked(x):  # falls wherever the image is not quite flat, and has no gradient
        flat = (x.flatten(1).amax(dim=1) - x.flatten(1).amin(dim=1) < 0.05).to(x.dtype)
        return torch.stack([flat + 0 * x.flatten(1).sum(dim=1), 0.5 + 0 * flat], dim=1)

    front = next(iter(fronts(masked, levels=(0.0, 0.2))))
    front.run(PLAIN, front.side.classifier, Escalate(queries=20), seed=0)
    assert front.outcome == [PLAIN, PLAIN]
    assert front.square == 2


def test_an_image_is_unpursued_only_if_every_view_gave_it_up():
    """One step of eps leaves 0.12 - 0.1 of 0.12, which is near, and 0.4 - 0.1 of 0.4, which is not."""
    first = PGD(steps=1, step=1.0, random=False, loss="margin")
    attack = Pursue(first, (APGD(steps=5, loss="margin"),), near=0.3)
    plan = Plan(plain=attack, adaptive=attack, longer=attack, refine=1)
    x, y = at(0.12, 0.4)
    found = run_portfolio(pair_of(line, line), x, y, torch.arange(2), threat=THREAT, plan=plan)["candidate"]
    assert found["outcome"] == ["robust", "robust"]
    assert (found["unpursued"], found["given_up"]["plain"], found["given_up"]["own gradients"]) == (1, 1, 1)
    thorough = replace(plan, plain=first)
    found = run_portfolio(pair_of(line, line), x, y, torch.arange(2), threat=THREAT, plan=thorough)["candidate"]
    assert (found["unpursued"], found["given_up"]["plain"]) == (0, 0)
