import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from lipforge.errors import InputError
from lipforge.forge.masks import (
    MASKS,
    MeanCentred,
    Piecewise,
    Smooth,
    Step,
    mask_from_dict,
    mask_to_dict,
    parse_mask,
)

values = st.floats(-10, 10, width=32)
thresholds = st.floats(2**-10, 5, width=32)
forged_masks = st.one_of(
    st.just(Step()),
    st.builds(Piecewise, d=st.floats(0, 0.95)),
    st.builds(Smooth, a=st.floats(0.5, 50), b=st.floats(-5, 20), argument=st.sampled_from(["relative", "absolute"])),
)
continuous_masks = st.builds(Piecewise, d=st.floats(0, 0.9))


def tensor(*numbers: float, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.tensor(numbers, dtype=dtype)


@given(forged_masks, values, thresholds)
def test_a_mask_never_enlarges_an_activation(mask, x, threshold):
    assert mask(tensor(x), threshold).abs() <= tensor(x).abs()


@given(forged_masks, values, thresholds)
def test_a_mask_keeps_zero_and_is_odd(mask, x, threshold):
    assert mask(tensor(0.0), threshold).item() == 0
    assert mask(tensor(-x), threshold).item() == -mask(tensor(x), threshold).item()


@given(forged_masks, values, thresholds)
def test_a_mask_is_the_identity_above_the_threshold(mask, x, threshold):
    beyond = math.copysign(threshold + abs(x) + 1e-3, x)
    assert torch.equal(mask(tensor(beyond), threshold), tensor(beyond))


@given(forged_masks, values, thresholds)
def test_a_mask_is_x_times_its_factor(mask, x, threshold):
    x = tensor(x, dtype=torch.float64)
    expected = torch.where(x.abs() <= threshold, x * mask.factor(x, threshold), x)
    assert torch.equal(mask(x, threshold), expected)
    assert 0 <= mask.factor(x, threshold).item() <= 1


@given(continuous_masks, st.floats(0, 8), st.floats(0, 8), thresholds)
def test_piecewise_never_rises_faster_than_its_largest_slope(mask, left, right, threshold):
    x = tensor(left, right, dtype=torch.float64)
    low, high = mask(x, threshold).tolist()
    assert abs(high - low) <= mask.max_slope * abs(right - left) + 1e-9


@given(forged_masks, st.floats(0, 8), st.floats(0, 8), thresholds)
def test_slope_and_jump_bound_every_difference(mask, left, right, threshold):
    x = tensor(left, right, dtype=torch.float64)
    low, high = mask(x, threshold).tolist()
    assert abs(high - low) <= mask.max_slope * abs(right - left) + mask.jump(threshold) + 1e-9


@pytest.mark.parametrize(
    "mask",
    [Piecewise(0.5), Piecewise(0.0), Smooth(), Smooth(8, 2), Smooth(3, 1, "absolute"), Smooth(1, -10, "signed")],
)
def test_the_largest_slope_is_reached(mask):
    threshold = 1.0 if getattr(mask, "argument", "relative") == "relative" else 50.0
    x = torch.linspace(-threshold, threshold, 400_001, dtype=torch.float64)
    steepest = (mask(x, threshold).diff() / x.diff()).abs().max().item()
    assert steepest == pytest.approx(mask.max_slope, rel=1e-3)


def test_piecewise_at_half_has_slope_three():
    assert Piecewise(0.5).max_slope == 3


@pytest.mark.parametrize("mask", [Step(), Piecewise(), Smooth(), MeanCentred()])
def test_there_is_no_jump_at_threshold_zero(mask):
    assert mask.jump(0.0) == 0


@pytest.mark.parametrize("mask", [Step(), Smooth(), Smooth(2, 4, "absolute"), Smooth(2, 4, "signed")])
def test_the_jump_is_the_gap_at_the_threshold(mask):
    edge = tensor(1.5, math.nextafter(1.5, 2), -1.5, math.nextafter(-1.5, -2), dtype=torch.float64)
    inside, outside, inside_negative, outside_negative = mask(edge, 1.5).tolist()
    gap = max(abs(outside - inside), abs(outside_negative - inside_negative))
    assert gap == pytest.approx(mask.jump(1.5), abs=1e-12)


@pytest.mark.parametrize("mask", [Step(), Piecewise(0.3), Smooth(), Smooth(2, 1, "absolute"), Smooth(2, 1, "signed")])
def test_gradients_are_exact_away_from_the_kinks(mask):
    x = tensor(-3.0, -1.2, -0.8, -0.1, 0.1, 0.55, 0.9, 1.1, 2.0, dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(lambda t: mask(t, 1.0), (x,))


def test_gradients_per_channel_are_exact_away_from_the_kinks():
    x = tensor(-3.0, -1.2, 0.1, 0.9, dtype=torch.float64).reshape(1, 4).requires_grad_()
    limits = tensor(1.0, 2.0, 0.05, 0.5, dtype=torch.float64)
    for mask in (Step(), Piecewise(0.3), Smooth()):
        assert torch.autograd.gradcheck(lambda t, mask=mask: mask(t, limits), (x,))
    assert torch.autograd.gradcheck(lambda t: MeanCentred()(t, limits, limits / 2), (x,))


@pytest.mark.parametrize("mask", [Step(), Piecewise(0.5), Smooth()])
def test_gradients_at_the_kinks_are_finite(mask):
    x = tensor(-1.0, -0.5, 0.0, 0.5, 1.0, dtype=torch.float64).requires_grad_()
    (gradient,) = torch.autograd.grad(mask(x, 1.0).sum(), x)
    assert gradient.isfinite().all()
    if isinstance(mask, Step):
        assert torch.equal(gradient, torch.zeros(5, dtype=torch.float64))


@pytest.mark.parametrize("mask", [Step(), Piecewise(0.25), Smooth()])
def test_a_dead_channel_with_threshold_zero_is_left_alone(mask):
    x = tensor(0.0, 0.5, -3.0, 0.0).requires_grad_()
    out = mask(x, tensor(0.0, 0.0, 0.0, 1.0))
    (gradient,) = torch.autograd.grad(out.sum(), x)
    assert torch.equal(out, x)
    assert gradient.isfinite().all()
    assert gradient[1:3].tolist() == [1, 1]


@given(st.lists(values, min_size=1, max_size=20), thresholds)
def test_step_agrees_with_its_definition_per_layer_and_per_channel(numbers, threshold):
    x = tensor(*numbers).reshape(1, -1)
    expected = tensor(*[0.0 if abs(v) <= threshold else v for v in x.flatten().tolist()]).reshape(1, -1)
    assert torch.equal(Step()(x, threshold), expected)
    assert torch.equal(Step()(x, torch.full((len(numbers),), threshold)), expected)


@pytest.mark.parametrize("mask", [Step(), Piecewise(), Smooth()])
@pytest.mark.parametrize("threshold", [0.5, torch.tensor([0.5, 0.5])])
def test_nan_stays_nan(mask, threshold):
    out = mask(tensor(float("nan"), 0.1), threshold)
    assert out[0].isnan()
    assert not out[1].isnan()


def test_mean_centred_puts_the_mean_in_the_place_of_near_values():
    x = tensor(1.0, 1.4, 1.5, 2.0, 0.6)
    out = MeanCentred()(x, tensor(0.5), tensor(1.0))
    assert torch.equal(out, tensor(1.0, 1.0, 1.5, 2.0, 1.0))


@pytest.mark.parametrize("mask", [Step(), Piecewise(0.25), Smooth(7, 3, "signed"), MeanCentred()])
def test_a_mask_survives_json(mask):
    assert mask_from_dict(mask_to_dict(mask)) == mask


@pytest.mark.parametrize("text", ["step", "piecewise:d=0.25", "smooth:a=7,b=3,argument=signed", "mean-centred"])
def test_a_mask_can_be_written_as_text(text):
    assert parse_mask(text).name == text.partition(":")[0].replace("-", "_")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("stepp", "mask must be one of step, piecewise, smooth, mean_centred, got 'stepp'"),
        ("step:d=1", "mask 'step' has no parameter 'd'"),
        ("piecewise:d", "key=value"),
        ("piecewise:d=x", "d must be a number"),
        ("piecewise:d=1", r"d must lie in \[0, 1\), got 1.0; d = 1 is the mask Step"),
        ("smooth:a=-1", "a must be positive"),
        ("smooth:argument=other", "argument must be one of relative, absolute, signed"),
    ],
)
def test_a_wrong_mask_is_named(text, message):
    with pytest.raises(InputError, match=message):
        parse_mask(text)


def test_every_mask_is_known_by_its_name():
    assert list(MASKS) == ["step", "piecewise", "smooth", "mean_centred"]
