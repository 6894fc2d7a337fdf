"""The fused form gives the same bits as the masks it replaces."""

import math

import pytest
import torch
from torch import Tensor, nn

import lipforge as lf
from lipforge.deployment.fused import Fused, fuse_
from lipforge.deployment.programs import traced
from tests.nets import ResidualNet, images, seeded


class Rectified(nn.Module):
    """A conv that passes on what it takes, behind a ReLU: the output is what the mask lets through."""

    def __init__(self, *, inplace: bool = False) -> None:
        super().__init__()
        self.relu, self.conv = nn.ReLU(inplace=inplace), nn.Conv2d(3, 3, 1, bias=False, groups=3)
        nn.init.ones_(self.conv.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(self.relu(x + 0))


class Overwritten(Rectified):
    """What the ReLU takes is changed in place before the mask reads what it gave."""

    def forward(self, x: Tensor) -> Tensor:
        x = x + 0
        rectified = self.relu(x)
        x.mul_(-1)
        return self.conv(rectified) + x


def forged(model: nn.Module, bound: Tensor) -> nn.Module:
    """The model with a Step mask in front of `conv`, whose threshold is half the bound."""
    site = lf.Site("conv", "test", "Conv2d", 3, (1, 3, 6, 8), -3)
    lf.insert_(model.eval(), [site], ratio=0.5)["conv"].set_bound(bound)
    return lf.forged(model)


def fused(model: nn.Module, image: Tensor) -> tuple[nn.Module, Fused]:
    module = traced(model, image).module()
    return module, fuse_(module)


def around(threshold: float) -> Tensor:
    """Values at and next to a threshold and its negative, zeros of both signs, tiny, huge and infinite ones."""
    c = torch.tensor(threshold)
    near = [c, torch.nextafter(c, torch.tensor(0.0)), torch.nextafter(c, torch.tensor(9e9)), c / 2, c * 2, c * 1.5]
    values = [*near, *(-value for value in near), *map(torch.tensor, (0.0, -0.0, 1e-40, 3e38, math.inf, -math.inf))]
    values += list(torch.randn(30, generator=torch.Generator().manual_seed(0)) * c)
    return torch.stack(values).view(1, 1, 6, 8).expand(1, 3, 6, 8)


@pytest.mark.parametrize("threshold", [0.37, 0.5, 1e-6, 3e5, 2.0**-24])
def test_a_step_behind_a_relu_gives_the_same_values_around_its_threshold(threshold):
    model, x = forged(Rectified(), torch.tensor(2 * threshold)), around(threshold)
    module, done = fused(model, x)
    assert done == Fused(masks=1)
    assert torch.equal(module(x), model(x))
    assert 0 < int((model(x) > 0).sum()) < x.numel()


@pytest.mark.parametrize("kind", [Rectified, Overwritten])
@pytest.mark.parametrize("inplace", [True, False])
def test_operators_that_work_in_place_do_not_change_what_is_fused(kind, inplace):
    model, x = forged(kind(inplace=inplace), torch.tensor(0.74)), around(0.37).nan_to_num(posinf=9.0, neginf=-9.0)
    assert torch.equal(fused(model, x)[0](x), model(x))


def test_nan_stays_nan():
    model = forged(Rectified(), torch.tensor(1.0))
    x = torch.full((1, 3, 6, 8), math.nan)
    assert fused(model, x)[0](x).isnan().all()


def test_a_mask_without_a_relu_in_front_is_left_alone():
    net = Rectified()
    net.relu = nn.SiLU()  # type: ignore[assignment]  # any activation that gives negative values
    assert fused(forged(net, torch.tensor(0.74)), around(0.37))[1] == Fused()


@pytest.mark.parametrize("masks", [True, False], ids=["with masks", "the paper's + Weight"])
def test_zero_weight_columns_go_together_with_the_channels_behind_them(masks):
    model, x = seeded(ResidualNet), images(4)
    lf.forge_(model, x, ratio=0.3)
    fold = lf.fold_(model, lf.count_zeros(model, x), frequency=0.6)
    view = lf.forged(model) if masks else lf.plain(model)
    module, done = fused(view, x[:1])
    # The input of a block also goes to its shortcut, so only the channels between its two convs can go.
    assert done.channels == len(fold.columns["block1.conv2"]) + len(fold.columns["block2.conv2"]) > 0
    assert module.get_parameter("block1.conv1.weight").shape[0] == 8 - len(fold.columns["block1.conv2"])
    torch.testing.assert_close(module(x), view(x), rtol=1e-5, atol=1e-6)  # the same sum in another order
    assert view.get_parameter("block1.conv1.weight").shape[0] == 8  # the live model is what it was
