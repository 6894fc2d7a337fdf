import copy
import pickle

import pytest
import torch

from lipforge.errors import InputError
from lipforge.forge.layer import Forge
from lipforge.forge.masks import MeanCentred, Piecewise, Smooth, Step


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
