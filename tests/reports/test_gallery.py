import base64
import io

import numpy as np
import pytest
import torch
from PIL import Image

from lipforge.errors import InputError
from lipforge.reports import make_gallery


def pixels(text: str) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(text))))


def pair(count=6, channels=3, seed=0):
    draw = torch.Generator().manual_seed(seed)
    clean = torch.randint(20, 236, (count, channels, 8, 8), generator=draw) / 255
    return clean, clean + torch.randint(-8, 9, clean.shape, generator=draw) / 255


def test_the_pngs_hold_the_images_to_the_last_bit_of_eight():
    clean, adversarial = pair()
    shown = make_gallery(clean, adversarial, [0] * 6, [0] * 6, [1] * 6)
    for item in shown.items:
        expected = (clean[item.index] * 255).round().permute(1, 2, 0).numpy()
        np.testing.assert_array_equal(pixels(item.clean), expected)
        expected = (adversarial[item.index] * 255).round().permute(1, 2, 0).numpy()
        np.testing.assert_array_equal(pixels(item.adversarial), expected)


def test_the_perturbation_is_magnified_around_grey_until_it_fills_the_range():
    clean, adversarial = pair()
    shown = make_gallery(clean, adversarial, [0] * 6, [0] * 6, [1] * 6)
    assert shown.largest == pytest.approx(8 / 255, abs=1e-6)
    assert shown.magnification == pytest.approx(0.5 / shown.largest)
    for item in shown.items:
        delta = (adversarial - clean)[item.index].permute(1, 2, 0).numpy()
        expected = 255 * (0.5 + shown.magnification * delta)
        assert np.abs(pixels(item.perturbation) - expected).max() <= 0.51  # half a step of rounding


def test_only_images_that_were_correct_are_shown_broken_and_robust_by_turns():
    clean, adversarial = pair()
    labels, before, after = [0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 4, 0], [0, 9, 2, 9, 4, 9]
    shown = make_gallery(clean, adversarial, labels, before, after, count=4)
    assert [item.index for item in shown.items] == [1, 0, 3, 2]
    assert [item.broken for item in shown.items] == [True, False, True, False]


def test_class_names_and_indices_are_the_callers():
    clean, adversarial = pair(1)
    names, labels = ("cat", "dog"), torch.tensor([0])
    item = make_gallery(clean, adversarial, labels, labels, [1], class_names=names, indices=[417]).items[0]
    assert (item.label, item.before, item.after, item.index) == ("cat", "cat", "dog", 417)


def test_grey_images_become_rgb():
    clean, adversarial = pair(1, channels=1)
    item = make_gallery(clean, adversarial, [0], [0], [1]).items[0]
    assert pixels(item.clean).shape == (8, 8, 3)


def test_no_perturbation_is_plain_grey():
    clean, _ = pair(1)
    shown = make_gallery(clean, clean, [0], [0], [0])
    assert set(pixels(shown.items[0].perturbation).flatten().tolist()) == {128}


@pytest.mark.parametrize(
    ("labels", "adversarial", "message"),
    [([0], (1, 3, 8, 9), "one shape"), ([0, 1], (1, 3, 8, 8), "labels must be one per image, got 2 for 1")],
)
def test_what_does_not_fit_together_is_an_error(labels, adversarial, message):
    with pytest.raises(InputError, match=message):
        make_gallery(torch.zeros(1, 3, 8, 8), torch.zeros(adversarial), labels, [0], [0])


def test_nothing_to_show_is_an_error():
    clean, adversarial = pair(1)
    with pytest.raises(InputError, match="no image is classified correctly"):
        make_gallery(clean, adversarial, [0], [1], [1])
