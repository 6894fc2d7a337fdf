import torch
from torch import nn

from lipforge.audit.double import decide_in_double
from lipforge.audit.front import Front
from lipforge.audit.stages import DOUBLE, OTHER
from lipforge.audit.subjects import Side, borrow, pair_of
from lipforge.types import Threat


class Line(nn.Module):
    """Two logits whose difference is the mean of the image minus 1/2; `flat` has a gradient of 0."""

    def __init__(self, *, flat=False):
        super().__init__()
        self.flat = flat
        self.eval()

    def forward(self, x):
        level = (x.detach() + 0 * x if self.flat else x).flatten(1).mean(dim=1) - 0.5
        return torch.stack([level, -level], dim=1)


def front_of(side):
    x, y = torch.full((1, 1, 4, 4), 0.55), torch.zeros(1, dtype=torch.int64)
    return Front(side, x, y, torch.arange(1), Threat("linf", 0.1), x.clone(), lambda stage: None)


def decided(side):
    """The one image has fallen on the base and stands on the candidate, though a gradient would break it."""
    base, candidate = front_of(pair_of(Line(), Line()).base), front_of(side)
    base.outcome, base.images = ["plain"], base.x - 0.1
    return decide_in_double(base, candidate, seed=0), candidate


def test_a_best_view_with_borrowed_gradients_is_tried_in_float64_too():
    flat, line = Line(flat=True), Line()
    found, candidate = decided(Side(flat, {OTHER: borrow(flat, line)}, {OTHER: line}))
    assert found == {"decide": 1, "flips": 0, "broken": 1}
    assert candidate.outcome == [DOUBLE]


def test_a_view_whose_source_is_no_module_gives_way_to_the_sides_own_gradients():
    line = Line()
    found, candidate = decided(Side(line, {"mine": borrow(line, lambda x: line(x))}, {"mine": lambda x: line(x)}))
    assert found == {"decide": 1, "flips": 0, "broken": 1}
    assert candidate.gradients[DOUBLE] > 0


def test_a_side_that_is_no_module_cannot_be_tried():
    line = Line()
    found, _ = decided(Side(lambda x: line(x), {OTHER: line}, {OTHER: line}))
    assert found is None
