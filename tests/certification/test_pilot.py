import pytest
import torch
from scipy.stats import norm
from torch import nn

from lipforge.certification import noise_pilot
from lipforge.certification.pilot import NoisePilot
from lipforge.certification.smoothing import Smoothing


class FirstPixel(nn.Module):
    """Class 1 where the first pixel is above a half."""

    def forward(self, x):
        return torch.stack([torch.full((len(x),), 0.5, device=x.device), x[:, 0, 0, 0]], dim=1)


def images(distance: float, count: int = 60) -> tuple[torch.Tensor, torch.Tensor]:
    """Images of class 1 at a known distance from the boundary, all of them right."""
    return torch.full((count, 1, 4, 4), 0.5 + distance), torch.ones(count, dtype=torch.int64)


@pytest.mark.parametrize(("distance", "untrained"), [(0.5, False), (0.05, True)])
def test_noisy_accuracy_is_that_of_a_half_space(distance, untrained):
    pilot = noise_pilot(FirstPixel().eval(), images(distance), sigma=0.25)
    expected = norm.cdf(distance / 0.25)
    assert (pilot.count, pilot.clean) == (48, 1.0)
    assert pilot.noisy == pytest.approx(expected, abs=4 * (expected * (1 - expected) / 192) ** 0.5)
    assert pilot.untrained == untrained
    assert ("not trained for this sigma" in str(pilot)) == untrained
    assert f"100.0 % clean and {100 * pilot.noisy:.1f} % under Gaussian noise of sigma 0.25 (48 images" in str(pilot)


def test_skip_and_limit_choose_the_images_that_would_be_certified():
    x, y = images(0.5)
    x[::2] = 0.0  # wrong
    assert noise_pilot(FirstPixel().eval(), (x, y), skip=2, limit=5).clean == 0.0
    assert noise_pilot(FirstPixel().eval(), (x, y), limit=5).count == 5


def test_the_pilot_has_noise_of_its_own():
    """Draws that choose or bound a class must not have been looked at before."""
    x = images(0.5, 1)[0]
    ids, draw = torch.zeros(1, dtype=torch.int64), torch.zeros(1, dtype=torch.int64)
    streams = ("smoothing-pilot", "smoothing-selection", "smoothing-estimation")
    pilot, *others = (Smoothing().noisy(x, ids, draw, stream) for stream in streams)
    assert not any(torch.equal(pilot, other) for other in others)


@pytest.mark.parametrize(("count", "untrained"), [(19, False), (20, True)])
def test_a_few_images_are_no_evidence(count, untrained):
    pilot = NoisePilot(0.5, count, clean=0.9, noisy=0.1)
    assert pilot.untrained == untrained
    assert ("not trained for this sigma" in str(pilot)) == untrained
