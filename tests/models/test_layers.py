import pytest
import torch

from lipforge.errors import InputError
from lipforge.models import Normalize


def test_each_channel_is_shifted_and_scaled_by_its_own_numbers():
    images = torch.tensor([0.5, 0.75]).view(1, 2, 1, 1).expand(1, 2, 3, 3)
    expected = torch.tensor([1.0, -1.0]).view(1, 2, 1, 1).expand(1, 2, 3, 3)
    torch.testing.assert_close(Normalize((0.25, 1.0), (0.25, 0.25))(images), expected)


def test_it_follows_the_model_to_another_dtype():
    assert Normalize((0.5,), (0.5,)).double()(torch.zeros(1, 1, 1, 1, dtype=torch.float64)).dtype == torch.float64


@pytest.mark.parametrize(("mean", "std"), [((0.5,), (0.5, 0.5)), ((), ())])
def test_mean_and_std_must_match(mean, std):
    with pytest.raises(InputError, match="one value per channel"):
        Normalize(mean, std)


def test_a_zero_std_is_refused():
    with pytest.raises(InputError, match="above 0"):
        Normalize((0.5, 0.5), (0.5, 0.0))


def test_grey_images_are_not_broadcast_to_three_channels():
    with pytest.raises(InputError, match=r"must have 3 channels here, got the shape \(2, 1, 4, 4\)"):
        Normalize((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))(torch.zeros(2, 1, 4, 4))


def test_the_numbers_are_visible_when_printed():
    assert str(Normalize((0.4914,), (0.247,))) == "Normalize(mean=[0.4914], std=[0.247])"
