import dataclasses

import pytest
import torch
from torch import Tensor, nn

from lipforge.attacks import DDN, FMN, fast
from lipforge.errors import InputError, RunError
from lipforge.evaluation import curve, evaluate
from lipforge.results import CurveResult, compare_curves, from_record, record
from lipforge.results.curve import curve_fields
from lipforge.runs import RunDir
from lipforge.types import Threat
from tests.attacks.oracles import small_images, small_net
from tests.evaluation.toys import labelled, linear

RADII = {"linf": 0.1, "l2": 0.5, "l1": 0.2}  # in l1 a single entry moves, and has 0.2 to go


def smallest(model: nn.Module, x: Tensor, y: Tensor, norm: str) -> Tensor:
    """Two classes: the margin over the dual norm of the difference of the weights; 0 where the margin is negative."""
    weight, logits, rows = model[1].weight, model(x), torch.arange(len(y))  # type: ignore[index]
    order = {"linf": 1, "l2": 2, "l1": torch.inf}[norm]
    dual = torch.linalg.vector_norm(weight[0] - weight[1], order)
    return ((logits[rows, y] - logits[rows, 1 - y]) / dual).clamp_min(0.0).detach()


def untimed(result: CurveResult) -> CurveResult:
    stages = tuple(dataclasses.replace(stage, seconds=0.0) for stage in result.stages)
    return dataclasses.replace(result, seconds=0.0, stages=stages)


@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
def test_on_a_linear_model_every_image_has_its_closed_form(norm):
    model = linear()
    data = labelled(model, count=40)
    found = curve(model, data, norm, eps=RADII[norm], shard_size=16)
    exact = smallest(model, *data, norm)
    measured = torch.tensor([RADII[norm] if eps is None else eps for eps in found.smallest_eps])
    # FMN ends within 0.001 of the boundary, and so do the numbers; float32 adds 1e-6.
    torch.testing.assert_close(measured, exact.clamp_max(RADII[norm]), rtol=3e-3, atol=1e-6)
    assert found.clean_accuracy == 0.8
    assert found.smallest_eps.count(0.0) == 8  # misclassified
    area = (exact.clamp_max(RADII[norm]) / RADII[norm]).mean()
    assert found.area == pytest.approx(float(area), rel=3e-3)


def test_an_image_that_is_robust_up_to_eps_has_no_smallest_eps():
    model = linear()
    data = labelled(model, count=40)
    exact = smallest(model, *data, "linf")
    found = curve(model, data, "linf", eps=0.06)
    assert [eps is None for eps in found.smallest_eps] == (exact > 0.06).tolist()
    assert found.accuracy_at(0.06) == int((exact > 0.06).sum()) / 40
    assert 0 < found.accuracy_at(0.06) < found.accuracy_at(0.0) == 0.8


def test_the_curve_of_a_net_is_not_above_what_fast_leaves_at_three_radii():
    model = small_net()
    data = small_images(model, 60)
    found = curve(model, data, "linf", eps=0.02)
    for eps in (0.002, 0.005, 0.01):
        left = evaluate(model, data, fast(), Threat("linf", eps)).robust_count
        assert sum(found.robust_at(eps)) <= left + 1, eps  # one image in 60 may need more than a few steps


@pytest.mark.parametrize("attack", ["fmn:steps=10", DDN(steps=10), "fmn:steps=5 + ddn:steps=5"])
def test_any_minimum_norm_attack_gives_a_curve(attack):
    model = small_net()
    found = curve(model, small_images(model, 12), "l2", eps=0.5, attack=attack)
    assert 0 < found.area < 1
    assert found.median_eps is not None


def test_a_cascade_goes_on_where_its_first_attack_broke_every_image():
    model = small_net()
    data = small_images(model, 12)
    one, both = (curve(model, data, "l2", eps=2.0, attack=attack) for attack in ("fmn:steps=2", "fmn:steps=2 + fmn"))
    assert None not in one.smallest_eps
    assert both.area < one.area


def test_shards_and_resuming_do_not_change_the_curve(tmp_path):
    model = linear()
    data = labelled(model, count=20)
    whole = curve(model, data, "linf", eps=0.1, attack=FMN(steps=5), shard_size=20)
    with RunDir.open(tmp_path) as run:
        first = curve(model, data, "linf", eps=0.1, attack=FMN(steps=5), shard_size=6, run=run)
        (folder,) = (tmp_path / "shards").iterdir()
        (folder / "0001.json").unlink()
        again = curve(model, data, "linf", eps=0.1, attack=FMN(steps=5), shard_size=6, run=run)
        assert untimed(again) == untimed(first)
        with pytest.raises(RunError, match="data"):
            curve(model, labelled(model, count=19), "linf", eps=0.1, attack=FMN(steps=5), shard_size=6, run=run)
    # A batch of another size rounds otherwise.
    assert [eps or 0.1 for eps in first.smallest_eps] == pytest.approx([eps or 0.1 for eps in whole.smallest_eps])


def test_a_result_comes_back_from_json():
    model = small_net()
    found = curve(model, small_images(model, 12), "linf", eps=0.005, attack=FMN(steps=5))
    assert None in found.smallest_eps
    assert from_record(record(found), "x") == found


def test_two_curves_are_compared_image_by_image():
    model = linear()
    data = labelled(model, count=40)
    base, other = (curve(model, data, "l2", eps=0.5, label=label, attack=FMN(steps=steps))
                   for label, steps in (("base", 20), ("other", 20)))  # fmt: skip
    same = compare_curves(base, other)
    assert (same.base, same.candidate, same.larger, same.smaller, same.p_value) == ("base", "other", 0, 0, 1.0)
    assert same.area_difference == 0.0
    farther = dataclasses.replace(other, smallest_eps=tuple(eps and min(2 * eps, 0.5) for eps in other.smallest_eps))
    found = compare_curves(base, farther)
    assert (found.larger, found.smaller) == (sum(0 < (eps or 0) < 0.5 for eps in base.smallest_eps), 0)
    assert found.area_difference > 0
    assert found.area_interval[0] > 0
    assert found.radii[1].eps == 0.125
    assert found.radii[1].comparison.gained == sum(0.0625 < (eps or 0) <= 0.125 for eps in base.smallest_eps)


def test_curves_over_other_images_or_radii_are_not_compared():
    model = linear()
    base = curve(model, labelled(model, count=10), "linf", eps=0.1, attack=FMN(steps=2))
    for other in (
        curve(model, labelled(model, count=9), "linf", eps=0.1, attack=FMN(steps=2)),
        curve(model, labelled(model, count=10), "linf", eps=0.2, attack=FMN(steps=2)),
    ):
        with pytest.raises(InputError, match="must have the same"):
            compare_curves(base, other)


@pytest.mark.parametrize(
    ("norm", "settings", "message"),
    [
        (Threat("l2", "1/2"), {}, 'norm must be a text, with eps beside it: norm="l2", eps="1/2"; got a Threat'),
        ("l3", {}, "norm must be one of linf, l2, l1, got 'l3'"),
        ("linf", {"eps": "16/255,0"}, "eps must be one radius, where the curve ends, got '16/255,0'"),
        ("linf", {"eps": (0.1, 0.0)}, "it always begins at 0"),
        ("linf", {"eps": -0.1}, "eps must be above 0"),
        ("linf", {"eps": 8}, "is it 8/255"),
        ("linf", {"attack": "ddn"}, "ddn knows the norm l2, got linf"),
        ("linf", {"attack": "apgd:steps=3"}, "attack must be minimum-norm, fmn, ddn .* got apgd:steps=3"),
        ("linf", {"attack": "fmn + apgd"}, "it stops at its first success"),
        ("linf", {"shard_size": 0}, "shard_size must be at least 1"),
    ],
)
def test_wrong_arguments_are_refused(norm, settings, message):
    model = linear()
    with pytest.raises(InputError, match=message):
        curve(model, labelled(model), norm, **settings)


def test_no_images_are_refused():
    model = linear()
    x, y = labelled(model)
    with pytest.raises(InputError, match="image"):
        curve(model, (x[:0], y[:0]), "linf")


def test_an_eps_outside_the_curve_is_refused():
    model = linear()
    found = curve(model, labelled(model), "linf", eps=0.1, attack=FMN(steps=2))
    with pytest.raises(InputError, match="where the curve was measured, got 0"):
        found.accuracy_at(0.2)


def test_a_softmax_makes_a_curve_unreliable_though_nothing_is_robust_at_its_end():
    net = small_net()
    x, y = small_images(net, 12)
    found = curve(nn.Sequential(net, nn.Softmax(dim=1)).eval(), (x, y), "linf", eps=0.5, attack=FMN(steps=8))
    assert found.smallest_eps.count(None) == 0
    assert [note.kind for note in found.notes] == ["softmax"]
    assert found.unreliable
    assert found.title == "model unreliable"


@pytest.mark.parametrize(
    ("smallest_eps", "median"),
    [((0.0, None), 0.0), ((0.0, 0.0, None, None), 0.0), ((0.0, 0.5, None), 0.5), ((0.1, None, None), None)],
)
def test_the_median_is_an_eps_of_an_image_or_none(smallest_eps, median):
    assert curve_fields(smallest_eps, eps=1.0)["median_eps"] == median


def test_an_image_that_breaks_at_the_largest_eps_is_below_one_that_does_not():
    model = linear()
    found = curve(model, labelled(model, 2), "linf", eps=0.1, attack=FMN(steps=2))
    base, candidate = (dataclasses.replace(found, smallest_eps=ends) for ends in ((0.1, 0.0), (None, 0.0)))
    compared = compare_curves(base, candidate)
    assert (compared.larger, compared.smaller) == (1, 0)
    assert compared.radii[-1].comparison.gained == 1
