import pytest
import torch

from lipforge.audit.front import Front
from lipforge.audit.portfolio import even_budget
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
