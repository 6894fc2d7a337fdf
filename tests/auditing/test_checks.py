"""Each check on measurements that are made up to pass and to fail, and the measurements on a line."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn

from lipforge.attacks import PGD
from lipforge.auditing import checks
from lipforge.auditing.pairs import changed_pair, pair_of
from lipforge.auditing.plan import Plan
from lipforge.errors import InputError, ModelError
from lipforge.forge import count_zeros, fold_
from lipforge.results import BracketResult, CertifyResult, CurvePoint, Note
from lipforge.results.bracket import bracket_fields
from lipforge.runs import Shard
from lipforge.types import Threat
from tests.auditing.quick import small
from tests.nets import images

YES, NO = True, False
THREAT = Threat("linf", "2/255")


def test_square_alone_must_break_nothing():
    assert checks.white_box([NO, YES], [YES, YES]).passed
    failed = checks.white_box([YES, YES], [YES, NO])
    assert failed.passed is False
    assert "square breaks 1 of these" in failed.evidence


def test_pgd_must_leave_no_more_than_fgsm():
    assert checks.one_step([YES, YES], [YES, NO]).passed
    assert checks.one_step([YES, NO], [YES, NO]).passed
    assert checks.one_step([YES, NO], [YES, YES]).passed is False


@pytest.mark.parametrize(
    ("left", "passed"), [((5, 3, 0), True), ((5, 5, 0), True), ((5, 3, 1), False), ((3, 5, 0), False)]
)
def test_accuracy_must_fall_to_zero(left, passed):
    points = [[radius / 255, robust] for radius, robust in zip((8, 32, 96), left, strict=True)]
    check = checks.sweep(points, 5)
    assert check.passed is passed
    assert f"{left[1]} at 32/255" in check.evidence


def test_transfer_may_break_half_a_percent_alone():
    own = [YES] * 200 + [NO] * 200
    assert checks.transferred(own, [NO] * 2 + [YES] * 398).passed
    failed = checks.transferred(own, [NO] * 3 + [YES] * 397)
    assert failed.passed is False
    assert "the base's alone break 3" in failed.evidence


FOLDED = {"base": 10, "weight": 10, "candidate": 11, "count": 20, "columns": 3, "frequency": 0.8, "images": 500,
          "data": "d:train"}  # fmt: skip


@pytest.mark.parametrize(("weight", "passed"), [(9, False), (10, True), (12, True)])
def test_the_weight_variant_must_be_no_worse_than_the_base(weight, passed):
    check = checks.weight_variant({**FOLDED, "weight": weight})
    assert check.passed is passed
    assert (
        "3 columns zeroed, of inputs that are zero at least 80 % of the time on 500 images of d:train" in check.evidence
    )
    assert f"base 10, weight {weight}, forged 11 of 20" in check.evidence


def test_without_zeroed_columns_or_a_fold_the_weight_variant_says_nothing_but_how_to_get_it():
    none_zeroed, no_fold = checks.weight_variant({**FOLDED, "columns": 0}), checks.weight_variant(None)
    assert (none_zeroed.passed, no_fold.passed) == (None, None)
    assert "fold at a lower frequency" in none_zeroed.evidence
    assert "`lipforge fold` on calibration images, then --fold" in no_fold.evidence


def test_cw_must_leave_no_more_than_transfer():
    assert checks.carlini_wagner([YES, NO], [YES, YES]).passed
    assert checks.carlini_wagner([YES, YES], [YES, NO]).passed is False
    assert checks.carlini_wagner(None, None).passed is None


def test_the_gradient_must_beat_random_directions_on_nine_images_of_ten():
    assert checks.along_the_gradient([YES] * 9 + [NO]).passed
    assert checks.along_the_gradient([YES] * 8 + [NO] * 2).passed is False


def test_one_zero_gradient_is_too_many():
    assert checks.zero_gradients([0, 30, 3000], 10).passed
    failed = checks.zero_gradients([1, 300, 3000], 10)
    assert failed.passed is False
    assert "1 of 10 images" in failed.evidence
    assert "10.00 % of entries" in failed.evidence


def test_every_flag_of_the_non_adaptive_attack_is_shown():
    assert checks.attack_flags([]).passed
    failed = checks.attack_flags([Note("random_outputs", "random"), Note("square", "were broken by Square", 2, 500)])
    assert failed.passed is False
    assert failed.evidence == "random; 2 of 500 images were broken by Square"


@pytest.mark.parametrize(
    ("counts", "passed"),
    [
        ({"decide": 3, "flips": 0, "broken": 0}, True),
        ({"decide": 3, "flips": 1, "broken": 0}, False),
        ({"decide": 3, "flips": 0, "broken": 1}, False),
        (None, None),
    ],
)
def test_rounding_must_not_decide(counts, passed):
    assert checks.precision(counts).passed is passed


def certificate(model, shares, **terms):
    """Certified accuracies at the radii 0 and 0.25 of a model with that digest."""
    points = zip((0.0, 0.25), shares, strict=True)
    curve = tuple(CurvePoint(radius, round(10 * share), share, (0.0, 1.0)) for radius, share in points)
    made = CertifyResult("x", "", "d", 0.25, 100, 1000, 0.001, 0, False, 10, 0, 1, 1.0, curve, (), model, "d")
    return replace(made, **terms)


def test_certificates_are_compared_where_a_run_has_both():
    base = certificate("b", (0.6, 0.4))
    assert checks.smoothing([base, certificate("c", (0.6, 0.5))], "b", "c").passed
    assert checks.smoothing([base, certificate("c", (0.7, 0.3))], "b", "c").passed is False
    assert checks.smoothing([base], "b", "c").passed is None


def bracketed(model, outcomes, **terms):
    """A bracket of a model with that digest: c is certified, u unknown, b broken by the attack."""
    words = tuple({"c": "certified", "u": "unknown", "b": "apgd"}[letter] for letter in outcomes)
    fields = {"label": model, "model": "", "data": "d", "attack": "fast", "threat": str(THREAT), "norm": "linf",
              "eps": THREAT.eps, "seed": 0, "method": "crown", "margin": (0.0,) * len(words), "quick": 0, "bounded": 0,
              "seconds": 1.0, "attack_seconds": 1.0, "notes": (), "model_digest": model,
              "data_digest": "d"}  # fmt: skip
    return BracketResult(**{**fields, **bracket_fields(words), **terms})


def test_a_bracket_decides_where_it_proves_something():
    check = partial(checks.bracket, base="b", candidate="c", threat=THREAT)
    assert check([bracketed("b", "bbbu"), bracketed("c", "ccbb")]).passed is True
    assert check([bracketed("b", "cccb"), bracketed("c", "ubbb")]).passed is False
    assert check([bracketed("b", "cuub"), bracketed("c", "ccub")]).passed is None
    assert "overlap" in check([bracketed("b", "cuub"), bracketed("c", "ccub")]).evidence


def test_brackets_of_another_model_or_on_other_terms_say_nothing():
    check = partial(checks.bracket, base="b", candidate="c", threat=THREAT)
    assert "lipforge bracket makes them" in check([bracketed("b", "bbbb")]).evidence
    for term in ({"eps": 0.5}, {"method": "crown-ibp"}, {"data_digest": "e"}, {"model_digest": "x"}):
        assert check([bracketed("b", "bbbb"), bracketed("c", "cccc", **term)]).passed is None


def test_certificates_of_another_model_or_on_other_terms_vouch_for_nothing():
    base = certificate("b", (0.6, 0.4))
    assert checks.smoothing([base, certificate("another ratio", (0.6, 0.5))], "b", "c").passed is None
    for term in ({"sigma": 0.5}, {"alpha": 0.05}, {"data_digest": "e"}):
        assert checks.smoothing([base, certificate("c", (0.6, 0.5), **term)], "b", "c").passed is None
    elsewhere = certificate("c", (0.6, 0.5), curve=(CurvePoint(0.7, 9, 0.9, (0.0, 1.0)),))
    assert checks.smoothing([base, elsewhere], "b", "c").passed is None
    worse = [certificate(model, share, sigma=1.0) for model, share in (("b", (0.6, 0.4)), ("c", (0.5, 0.4)))]
    assert checks.smoothing([base, certificate("c", (0.6, 0.5)), *worse], "b", "c").passed is False


def test_unequal_effort_fails_and_shards_weigh_alike():
    failed = checks.equal_effort([(10, 539.0, 12, 2075.0)])
    assert failed.passed is False
    assert failed.evidence == "base 539, candidate 2075"
    assert checks.equal_effort([(10, 1000.0, 10, 901.0)]).passed
    assert checks.equal_effort([(10, 1000.0, 10, 899.0)]).passed is False
    assert checks.equal_effort([(10, 30.0, 10, 12.0)]).passed
    # Even in each shard, though the means over all images are 583 and 917.
    assert checks.equal_effort([(50, 500.0, 10, 500.0), (10, 1000.0, 50, 1000.0)]).passed
    assert checks.equal_effort([(0, 0.0, 5, 100.0)]).passed is None


PLAN = Plan(non_adaptive=PGD(), adaptive=PGD(), longer=PGD(), check_queries=5)


def line(x):
    """Two logits whose difference is the mean of the image minus 1/2: an image is broken if eps exceeds its level."""
    level = x.flatten(1).mean(dim=1) - 0.5
    return torch.stack([level, -level], dim=1)


class AlwaysOne(nn.Module):
    """Says that every image is of class 1."""

    def forward(self, x):
        return torch.eye(10)[torch.ones(len(x), dtype=torch.int64)] + 0 * x.sum()


def flat(x):
    """The same decisions with a gradient of 0."""
    return line(x.detach()) + 0 * x.flatten(1).sum(dim=1, keepdim=True)


def measured(classifier, threat, left=(True,) * 4, rows=slice(None)):
    x = torch.stack([torch.full((1, 4, 4), 0.5 + level) for level in (0.05, 0.15, 0.45, -0.1)])
    shard = Shard(x[rows], torch.zeros(4, dtype=torch.int64)[rows], torch.arange(4)[rows])
    return checks.measure(pair_of(line, classifier), shard, left=left[rows], threat=threat, plan=PLAN)


@pytest.mark.parametrize("threat", [Threat("linf", 0.1), Threat("l1", 0.5)])
def test_shards_are_joined_to_the_measurements_of_all_their_images(threat):
    left = (True, True, False, True)
    shards = [measured(flat, threat, left, rows) for rows in (slice(0, 3), slice(3, 4))]
    assert checks.joined(shards) == measured(flat, threat, left)


def test_on_a_line_robust_is_what_lies_further_than_eps():
    found = measured(line, Threat("linf", 0.1))
    expected = [False, True, True, False]
    assert (found["fgsm"], found["pgd"], found["cw"]) == (expected, expected, expected)
    assert found["cw_on_base"] == expected
    assert [count for _, count in found["sweep"]] == [2, 1, 1]
    assert [radius for radius, _ in found["sweep"]] == pytest.approx([0.1, 0.2, 96 / 255])


def test_on_a_line_the_gradient_beats_every_random_direction_and_is_never_zero():
    found = measured(line, Threat("linf", 0.1))
    assert found["directions"] == [True] * 4
    assert found["zero_gradients"] == [0, 0, 64]


def test_square_looks_at_the_images_that_the_non_adaptive_attack_leaves():
    def found(*left):
        return measured(line, Threat("linf", 0.1), left)["square"]

    assert found(True, True, True, True) == [False, True, True, False]
    assert found(True, True, False, False) == [False, True, True, True]
    assert found(False, True, True, False) == found(False, False, False, False) == [True] * 4


def test_a_gradient_of_zero_is_counted_and_beats_nothing():
    found = measured(flat, Threat("linf", 0.1))
    assert found["zero_gradients"] == [4, 64, 64]
    assert found["directions"] != [True] * 4
    assert found["fgsm"] == [True, True, True, False]


@pytest.mark.parametrize(
    ("classifier", "label", "error"), [(line, 7, InputError), (lambda x: line(x) * torch.nan, 0, ModelError)]
)
def test_unknown_labels_and_nan_are_errors_in_the_checklist_too(classifier, label, error):
    shard = Shard(torch.full((1, 1, 4, 4), 0.6), torch.tensor([label]), torch.arange(1))
    with pytest.raises(error):
        checks.measure(pair_of(line, classifier), shard, left=[True], threat=Threat("linf", 0.1), plan=PLAN)


def test_the_weight_variant_is_measured_beside_base_and_candidate():
    model, (x, y) = small()  # every label is 0, and both sides are robust
    fold = fold_(model, count_zeros(model, images(32)), frequency=0.5)
    fold.undo_(model)
    shard, pair = Shard(x[:3], y[:3], torch.arange(3)), changed_pair(model)
    found = checks.measure_fold(pair, AlwaysOne().eval(), fold, shard, threat=Threat("linf", "2/255"), plan=PLAN)
    assert (found["base"], found["weight"], found["candidate"]) == (3, 0, 3)
    assert found["columns"] == sum(map(len, fold.columns.values())) > 0
    assert (found["frequency"], found["images"], found["count"]) == (0.5, 32, 3)


@pytest.mark.parametrize(
    ("threat", "expected"),
    [
        (Threat("linf", "2/255"), [2, 4, 8, 16, 32, 64, 96]),
        (Threat("linf", "96/255"), [96]),
        (Threat("linf", "100/255"), [100]),
    ],
)
def test_the_sweep_doubles_up_to_96_of_255(threat, expected):
    assert [255 * radius for radius in checks.radii(threat)] == pytest.approx(expected)


def test_the_l2_sweep_ends_at_twelve_times_eps():
    assert checks.radii(Threat("l2", 0.5)) == [0.5, 1.0, 2.0, 4.0, 6.0]
