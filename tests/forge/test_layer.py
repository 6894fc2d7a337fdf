import copy
import pickle

import pytest
import torch
from torch import nn

from lipforge.analysis import analyse
from lipforge.errors import InputError, SiteError
from lipforge.forge.calibrate import calibrate_, forge_
from lipforge.forge.fold import count_zeros
from lipforge.forge.insert import forges
from lipforge.forge.layer import Forge
from lipforge.forge.masks import MeanCentred, Piecewise, Smooth, Step
from lipforge.forge.recipe import recipe_of
from lipforge.forge.views import forged, plain, smooth_backward, straight_through
from tests.nets import PlainNet, ResidualNet, images, seeded


def calibrated(mask=None, ratio=0.25, bound=4.0) -> Forge:
    forge = Forge(mask or Step(), ratio)
    forge.set_bound(torch.tensor(bound))
    return forge


def test_a_new_forge_is_the_identity_in_inference_mode():
    forge = Forge()
    x = torch.linspace(-1, 1, 12).reshape(3, 4)
    assert (forge.mode, forge.ratio, forge.bound.item()) == ("forged", 0.0, 0.0)
    assert forge(x) is x


def test_ratio_zero_or_bound_zero_is_the_identity():
    x = torch.tensor([-0.0, 0.0, 1e-30, 5.0])
    assert calibrated(ratio=0.0)(x) is x
    assert calibrated(bound=0.0)(x) is x


def test_track_mode_passes_through_and_keeps_the_largest_magnitude():
    forge = Forge(ratio=0.5)
    forge.mode = "track"
    x = torch.tensor([[1.0, -6.0]])
    assert forge(x) is x
    forge(torch.tensor([[2.0, 3.0]]))
    forge.mode = "forged"
    assert forge.bound.item() == 6.0
    assert forge.threshold == 3.0


def test_tracking_again_goes_on_from_the_old_bound():
    forge = calibrated(bound=4.0)
    forge.mode = "track"
    forge(torch.tensor([1.0]))
    forge.mode = "forged"
    assert forge.bound.item() == 4.0


@pytest.mark.parametrize("mask", [Step(), Piecewise(), Smooth()])
def test_straight_through_has_the_forged_output_bit_for_bit_and_an_identity_gradient(mask):
    forge = calibrated(mask)
    x = torch.randn(64, 33, generator=torch.Generator().manual_seed(0)).requires_grad_()
    forged = forge(x)
    forge.mode = "straight_through"
    through = forge(x)
    upstream = torch.randn(64, 33, generator=torch.Generator().manual_seed(1))
    (gradient,) = torch.autograd.grad(through, x, upstream)
    assert torch.equal(through, forged)
    assert torch.equal(gradient, upstream)
    assert not torch.equal(torch.autograd.grad(forged, x, upstream)[0], upstream)


def test_straight_through_works_under_vmap():
    forge = calibrated()
    forge.mode = "straight_through"
    x = torch.randn(3, 5, generator=torch.Generator().manual_seed(0))
    gradients = torch.func.vmap(torch.func.grad(lambda row: forge(row).sum()))(x)
    assert torch.equal(gradients, torch.ones(3, 5))


@pytest.mark.parametrize("mask", [Step(), Piecewise(d=0.5), Smooth()])
@pytest.mark.parametrize("width", [0.1, 0.5])
def test_smooth_backward_has_the_forged_output_bit_for_bit_and_the_gradient_of_a_smooth_mask(mask, width):
    """Witness: autograd through x * sigmoid((|x| / threshold - 1) / width), written out."""
    forge = calibrated(mask)
    x = 4 * torch.randn(64, 33, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    forged = forge(x)
    forge.mode, forge.width = "smooth_backward", width
    x.requires_grad_()
    through = forge(x)
    (gradient,) = torch.autograd.grad(through.sum(), x)
    surrogate = x * torch.sigmoid((x.abs() / forge.threshold - 1) / width)
    assert torch.equal(through, forged)
    torch.testing.assert_close(gradient, torch.autograd.grad(surrogate.sum(), x)[0])


def test_smooth_backward_leaves_a_dead_channel_alone_and_is_centred_where_the_mask_is():
    forge = Forge(MeanCentred(), ratio=1.0, channels=2, channel_dim=-1)
    forge.set_bound(torch.tensor([0.0, 2.0]), torch.tensor([5.0, 3.0]))
    forge.mode = "smooth_backward"
    x = torch.tensor([[5.0, 3.0], [0.0, 5.0]], requires_grad=True)
    (gradient,) = torch.autograd.grad(forge(x).sum(), x)
    expected = torch.tensor([[1.0, torch.sigmoid(torch.tensor(-2.0)).item()], [1.0, 1.0]])
    torch.testing.assert_close(gradient, expected)


def test_plain_mode_switches_the_mask_off():
    forge = calibrated()
    forge.mode = "plain"
    x = torch.tensor([0.5])
    assert forge(x) is x


def test_per_channel_bounds_act_on_their_channels():
    forge = Forge(Step(), ratio=0.5, channels=2, channel_dim=-3)
    forge.set_bound(torch.tensor([2.0, 8.0]))
    x = torch.full((1, 2, 1, 3), 3.0)
    assert torch.equal(forge(x), torch.tensor([3.0, 0.0]).view(1, 2, 1, 1).expand(1, 2, 1, 3))


def test_per_channel_bounds_act_on_the_last_dimension_of_tokens():
    forge = Forge(Step(), ratio=0.5, channels=2, channel_dim=-1)
    forge.set_bound(torch.tensor([2.0, 8.0]))
    assert torch.equal(forge(torch.full((1, 4, 2), 3.0)), torch.tensor([3.0, 0.0]).expand(1, 4, 2))


def test_the_layer_survives_deepcopy_and_pickle():
    forge = calibrated(Piecewise(0.25))
    x = torch.randn(8, generator=torch.Generator().manual_seed(0))
    for copied in (copy.deepcopy(forge), pickle.loads(pickle.dumps(forge))):
        assert torch.equal(copied(x), forge(x))
        assert (copied.mask, copied.ratio, copied.bound.item()) == (forge.mask, forge.ratio, forge.bound.item())


def test_the_layer_adds_nothing_to_a_state_dict():
    assert list(calibrated().state_dict()) == []


def test_the_layer_shows_its_figures():
    assert "mask=Step(), ratio=0.25, bound=4, mode=forged" in repr(calibrated())


@pytest.mark.parametrize("ratio", [-0.1, 1.5, float("nan"), "2^-7", True])
def test_a_ratio_outside_0_to_1_is_refused(ratio):
    with pytest.raises(InputError, match=r"ratio must be a number in \[0, 1\]"):
        calibrated().ratio = ratio


def test_an_unknown_mode_is_refused():
    with pytest.raises(InputError, match=r"mode must be one of plain, track, .*, got 'training'"):
        calibrated().mode = "training"  # type: ignore[assignment]  # the mistake under test


@pytest.mark.parametrize("bound", [float("nan"), float("inf"), -1.0])
def test_a_bound_that_is_no_bound_is_refused(bound):
    with pytest.raises(InputError, match="bound must be finite and not negative"):
        calibrated(bound=bound)


def test_mean_centred_cannot_track_by_itself():
    with pytest.raises(InputError, match="needs calibrate_"):
        Forge(MeanCentred()).mode = "track"


def test_a_mask_given_by_name_is_refused():
    with pytest.raises(InputError, match=r"mask must be a mask such as Step\(\).*got 'step'"):
        Forge("step")  # type: ignore[arg-type]  # the mistake under test


SCALE, SHIFT = torch.tensor([2.0, -0.5]), torch.tensor([0.25, 1.0])


def affine(mask=None, ratio=0.25, bound=4.0, channel_dim=-3) -> Forge:
    forge = Forge(mask or Step(), ratio, channels=2, channel_dim=channel_dim)
    forge.set_bound(torch.tensor(bound))
    forge.set_affine(SCALE, SHIFT)
    return forge


def normal(*shape: int) -> torch.Tensor:
    return 2 * torch.randn(*shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("mask", [Step(), Piecewise(), Smooth()])
@pytest.mark.parametrize(("shape", "channel_dim"), [((3, 2, 4, 5), -3), ((3, 6, 2), -1), ((3, 2), -1)])
def test_scale_and_shift_of_each_channel_follow_the_mask(mask, shape, channel_dim):
    x, forge = normal(*shape), affine(mask, channel_dim=channel_dim)
    expected = mask(x, forge.threshold)
    for channel in (0, 1):
        expected.select(channel_dim, channel).mul_(SCALE[channel]).add_(SHIFT[channel])
    assert torch.equal(forge(x), expected)
    assert not torch.equal(mask(x, forge.threshold), x)


@pytest.mark.parametrize("ratio", [0.0, 0.25])
def test_scale_and_shift_act_with_a_mask_or_alone(ratio):
    forge = affine(ratio=ratio)
    x = torch.full((1, 2, 1, 1), 0.5)  # below the threshold of 1, where there is one
    expected = SCALE * (0.0 if ratio else 0.5) + SHIFT
    assert torch.equal(forge(x), expected.view(1, 2, 1, 1))


@pytest.mark.parametrize("mode", ["plain", "track"])
def test_scale_and_shift_are_off_in_plain_and_track_mode(mode):
    forge, x = affine(), normal(3, 2, 4, 4)
    forge.mode = mode
    assert forge(x) is x


@pytest.mark.parametrize("mask", [Step(), Piecewise(), Smooth()])
@pytest.mark.parametrize("mode", ["straight_through", "smooth_backward"])
def test_other_backward_passes_have_the_affine_output_and_its_slope(mask, mode):
    """Witness: the gradient of the same function without an affine part, times the scale."""
    forge, bare, x = affine(mask), affine(mask), normal(3, 2, 4, 4).requires_grad_()
    forged = forge(x)
    bare.set_affine(None, None)
    forge.mode = bare.mode = mode
    through, upstream = forge(x), normal(3, 2, 4, 4).flip(0)
    (gradient,) = torch.autograd.grad(through, x, upstream)
    (expected,) = torch.autograd.grad(bare(x), x, upstream * SCALE.view(1, 2, 1, 1))
    assert torch.equal(through, forged)
    assert torch.equal(gradient, expected)
    assert not torch.equal(torch.autograd.grad(forged, x, upstream)[0], expected)


def test_scale_and_shift_are_copies_and_can_be_taken_out():
    scale, shift, x = SCALE.clone(), SHIFT.clone(), normal(2, 2, 3, 3)
    forge = affine()
    forge.set_affine(scale, shift)
    before = forge(x)
    scale.zero_(), shift.zero_()
    assert torch.equal(forge(x), before)
    forge.set_affine(None, None)
    assert torch.equal(forge(x), Step()(x, forge.threshold))


@pytest.mark.parametrize(
    ("scale", "shift", "message"),
    [
        (SCALE[:1], SHIFT, "scale must be 2 finite numbers, one per channel"),
        (SCALE, SHIFT.view(1, 2), "shift must be 2 finite numbers"),
        (SCALE / 0, SHIFT, "scale must be 2 finite numbers"),
        (SCALE, SHIFT * torch.nan, "shift must be 2 finite numbers"),
        (SCALE, None, "scale and shift go together"),
        (None, SHIFT, "scale and shift go together"),
    ],
)
def test_a_wrong_scale_or_shift_is_refused_and_changes_nothing(scale, shift, message):
    forge, x = affine(), normal(2, 2, 3, 3)
    before = forge(x)
    with pytest.raises(InputError, match=message):
        forge.set_affine(scale, shift)
    assert torch.equal(forge(x), before)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_scale_and_shift_stay_in_float32_and_keep_the_type_of_x(dtype):
    forge, x = affine().to(dtype), normal(2, 2, 3, 3).to(dtype)
    assert forge(x).dtype == dtype
    assert forge.scale is not None
    assert forge.scale.dtype == torch.float32


def test_scale_and_shift_survive_deepcopy_and_pickle_and_are_shown():
    forge, x = affine(), normal(2, 2, 3, 3)
    for copied in (copy.deepcopy(forge), pickle.loads(pickle.dumps(forge))):
        assert torch.equal(copied(x), forge(x))
    assert repr(forge).endswith("mode=forged, affine)")
    assert list(forge.state_dict()) == []


def test_what_is_measured_behind_a_mask_refuses_an_affine_part():
    model = seeded(ResidualNet)
    forge_(model, images(8))
    bounds = recipe_of(model).bounds
    forge = forges(model)["block1.conv2"]
    forge.set_affine(torch.ones(8), torch.zeros(8))
    for measure in (calibrate_, count_zeros, analyse):
        with pytest.raises(SiteError, match=f"{measure.__name__} does not work behind an affine part.*remove_"):
            measure(model, images(2))
    assert recipe_of(model).bounds == bounds
    forge.set_affine(None, None)
    calibrate_(model, images(2))


@pytest.mark.parametrize("mask", [Step(), Piecewise()])
def test_an_in_place_activation_writes_what_the_affine_part_makes(mask):
    """Witness: the same model with activations that write elsewhere, in every view and its gradient."""
    x, models = images(2).requires_grad_(), [seeded(PlainNet), seeded(PlainNet)]
    for activation in models[1].modules():
        if isinstance(activation, nn.ReLU):
            activation.inplace = False
    for model in models:
        forge_(model, images(8), mask=mask, ratio=0.25, rules=["activations"])
        for forge in forges(model).values():
            forge.set_affine(torch.full((forge.channels,), 1.5), torch.linspace(-0.5, 0.5, forge.channels))
    for view in (forged, straight_through, smooth_backward):
        logits = [view(model)(x) for model in models]
        gradients = [torch.autograd.grad(each.sum(), x)[0] for each in logits]
        assert torch.equal(logits[0], logits[1])
        assert torch.equal(gradients[0], gradients[1])
    assert not torch.equal(logits[0], seeded(PlainNet)(x))
    assert torch.equal(plain(models[0])(x), seeded(PlainNet)(x))
