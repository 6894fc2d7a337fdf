"""One shard under all attacks: what each side had, and the images that decide in float64."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from lipforge.attacks import APGD, PGD, Cascade, Escalate, Refine, TargetedAPGD
from lipforge.auditing.attacks import AttackedSide, attack_in_double, attack_shard, attack_what_decides, equal_budget
from lipforge.auditing.pairs import Side, borrow, pair_of
from lipforge.auditing.plan import DOUBLE, NON_ADAPTIVE, TARGETED, TRANSFERRED, EarlyStopped, Plan
from lipforge.runs import Shard
from lipforge.types import Threat

THREAT = Threat("linf", 0.1)


def line(x):
    """Two logits whose difference is the mean of the image minus 1/2: an image is broken if eps exceeds its level."""
    level = x.flatten(1).mean(dim=1) - 0.5
    return torch.stack([level, -level], dim=1)


def at(*levels):
    """Images of class 0."""
    x = torch.stack([torch.full((1, 4, 4), 0.5 + level) for level in levels])
    return Shard(x, torch.zeros(len(levels), dtype=torch.int64), torch.arange(len(levels)))


def sides(base=line, candidate=line, levels=(0.3, 0.4)):
    pair = pair_of(base, candidate)
    return [AttackedSide(side, at(*levels), THREAT) for side in (pair.base, pair.candidate)]


@pytest.mark.parametrize("missing", [9, 15, 250, 1900])
def test_missing_gradients_are_made_up_for_however_many(missing):
    base, candidate = sides()
    candidate.backwards += 500 + missing
    base.backwards += 500
    equal_budget(base, candidate, seed=0)
    assert abs(base.effort - candidate.effort) < 10
    assert candidate.effort == 500 + missing


def test_what_the_probe_of_a_fast_attack_breaks_counts_as_broken_by_square():
    def masked(x):  # misclassifies whatever is not quite flat, and has no gradient
        flat = (x.flatten(1).amax(dim=1) - x.flatten(1).amin(dim=1) < 0.05).to(x.dtype)
        return torch.stack([flat + 0 * x.flatten(1).sum(dim=1), 0.5 + 0 * flat], dim=1)

    side, _ = sides(masked, levels=(0.0, 0.2))
    attack = Cascade((PGD(steps=1, random_start=False), Escalate(queries=20, every=1)))
    side.attack(NON_ADAPTIVE, side.side.classifier, attack, seed=0)
    assert side.outcome == [NON_ADAPTIVE, NON_ADAPTIVE]
    assert [note.count for stage, note in side.notes if (stage, note.kind) == (NON_ADAPTIVE, "square")] == [2]


def test_an_image_counts_as_early_stopped_only_if_every_gradient_attack_stopped_early():
    """One step of eps leaves 0.12 - 0.1 of 0.12, which is close, and 0.4 - 0.1 of 0.4, which is not."""
    first = PGD(steps=1, step_size=1.0, random_start=False, loss="margin")
    attack = EarlyStopped(first, (APGD(steps=5, loss="margin"),), near=0.3)
    plan = Plan(non_adaptive=attack, adaptive=attack, longer=attack, refine=1)
    pair, shard = pair_of(line, line), at(0.12, 0.4)
    found = attack_shard(pair, shard, (line, line), threat=THREAT, plan=plan)["candidate"]
    assert found["outcome"] == ["robust", "robust"]
    assert found["always_early_stopped"] == 1
    assert (found["early_stopped"]["non-adaptive"], found["early_stopped"]["own gradients"]) == ([1], [1])
    thorough = replace(plan, non_adaptive=first)
    found = attack_shard(pair, shard, (line, line), threat=THREAT, plan=thorough)["candidate"]
    assert (found["always_early_stopped"], found["early_stopped"]["non-adaptive"]) == (0, [])


STRONG = TargetedAPGD(steps=9, loss="margin")


def deciding(candidate):
    """Sides on a gained image, a lost one, and one that decides and that nothing breaks."""
    pair = pair_of(line, candidate, {"mine": line})
    base, other = (AttackedSide(side, at(0.05, 0.06, 0.4), THREAT) for side in (pair.base, pair.candidate))
    base.outcome, other.outcome = [NON_ADAPTIVE, "robust", NON_ADAPTIVE], ["robust", NON_ADAPTIVE, "robust"]
    return base, other


def test_images_that_decide_are_attacked_on_the_side_that_keeps_them():
    base, candidate = deciding(line)
    attack_what_decides(base, candidate, STRONG, seed=0)
    assert base.outcome == [NON_ADAPTIVE, TARGETED, NON_ADAPTIVE]
    assert candidate.outcome == [TARGETED, NON_ADAPTIVE, "robust"]
    assert candidate.gradients[TARGETED] >= 9
    assert (base.effort, candidate.effort) == (0, 0), "no side had it easier"


def test_images_that_decide_are_attacked_by_the_first_view_and_by_the_best():
    base, candidate = deciding(borrow(line, lambda x: line(1 - x)))
    attack_what_decides(base, candidate, STRONG, seed=0)
    assert candidate.outcome[0] == "robust", "its own gradients lead away, and no view has broken more"
    candidate.outcome[1] = "mine"
    attack_what_decides(base, candidate, STRONG, seed=0)
    assert candidate.outcome == [TARGETED, "mine", "robust"]


def test_no_image_that_decides_counts_as_early_stopped():
    first = PGD(steps=1, step_size=1.0, random_start=False, loss="margin")
    attack = EarlyStopped(first, (APGD(steps=5, loss="margin"),), near=0.3)
    plan = Plan(non_adaptive=attack, adaptive=attack, longer=attack, refine=1)

    def wrong(x):
        return line(x).flip(1)

    for targeted, stopped in ((None, 1), (TargetedAPGD(steps=9, loss="margin"), 0)):
        again = replace(plan, targeted=targeted)
        found = attack_shard(pair_of(wrong, line), at(0.4), (wrong, line), threat=THREAT, plan=again)
        assert found["candidate"]["always_early_stopped"] == stopped


def test_refining_starts_where_it_is_told():
    """From the edge of the ball one small step is enough; from the clean image it is not."""
    x, y, _ = at(0.095)
    close = Refine(x - 0.094, steps=1, step_size=0.05).run(line, x, y, threat=THREAT)
    far = Refine(x, steps=1, step_size=0.05).run(line, x, y, threat=THREAT)
    assert (close.broken.item(), far.broken.item()) == (True, False)


def test_refining_stays_inside_the_threat_whatever_it_starts_from():
    x, y, _ = at(0.4)
    result = Refine(torch.zeros_like(x), steps=1).run(line, x, y, threat=THREAT)
    assert not result.broken.any()
    assert (result.images - x).abs().max() <= 0.1 + 1e-6


class Line(nn.Module):
    """Two logits whose difference is the mean of the image minus 1/2; `flat` has a gradient of 0."""

    def __init__(self, *, flat=False):
        super().__init__()
        self.flat = flat
        self.eval()

    def forward(self, x):
        level = (x.detach() + 0 * x if self.flat else x).flatten(1).mean(dim=1) - 0.5
        return torch.stack([level, -level], dim=1)


def decided(candidate):
    """The one image is broken on the base and robust on the candidate, though a gradient would break it."""
    base, attacked = (AttackedSide(side, at(0.05), THREAT) for side in (pair_of(Line(), Line()).base, candidate))
    base.outcome, base.images = [NON_ADAPTIVE], base.shard.x - 0.1
    return attack_in_double(base, attacked, seed=0), attacked


def test_a_best_view_with_borrowed_gradients_is_tried_in_float64_too():
    flat, line = Line(flat=True), Line()
    found, candidate = decided(Side(flat, {TRANSFERRED: borrow(flat, line)}, {TRANSFERRED: line}))
    assert found == {"decide": 1, "flips": 0, "broken": 1}
    assert candidate.outcome == [DOUBLE]


def test_a_view_whose_source_is_no_module_gives_way_to_the_sides_own_gradients():
    line = Line()
    found, candidate = decided(Side(line, {"mine": borrow(line, lambda x: line(x))}, {"mine": lambda x: line(x)}))
    assert found == {"decide": 1, "flips": 0, "broken": 1}
    assert candidate.gradients[DOUBLE] > 0


def test_a_side_that_is_no_module_cannot_be_tried():
    line = Line()
    found, _ = decided(Side(lambda x: line(x), {TRANSFERRED: line}, {TRANSFERRED: line}))
    assert found is None
