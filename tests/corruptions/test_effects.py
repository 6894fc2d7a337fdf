import colorsys

import numpy as np
import pytest
import torch
from scipy import ndimage, stats

from lipforge.corruptions import CORRUPTIONS, corrupt_images, effects
from lipforge.corruptions.settings import SETTINGS
from lipforge.errors import InputError
from tests.nets import images

SMALL, LARGE = SETTINGS["cifar10-c"], SETTINGS["imagenet-c"]


def noise(count: int, stream: str = "x") -> effects.Noise:
    return effects.Noise(0, torch.arange(count), stream)


def photo(count: int = 2, size: int = 32, channels: int = 3) -> torch.Tensor:
    """Smooth images, on bytes."""
    x = torch.nn.functional.interpolate(images(count, size=5)[:, :channels], size=(size, size), mode="bicubic")
    return (x.clamp(0, 1) * 255).round() / 255


@pytest.mark.parametrize("wrong", [photo() * 255, photo() - 0.5, photo() * torch.nan, (photo() * 255).byte()])
def test_images_outside_of_the_range_are_refused(wrong):
    with pytest.raises(InputError, match="images must"):
        corrupt_images(wrong, "contrast", 1)


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_an_image_is_corrupted_alike_in_every_batch_and_otherwise_by_another_seed(name):
    x = photo(4)
    made = corrupt_images(x, name, 3, sample_ids=torch.tensor([5, 9, 2, 7]), seed=1)
    alone = corrupt_images(x[1:2], name, 3, sample_ids=torch.tensor([9]), seed=1)
    assert torch.equal(made[1:2], alone)
    assert made.shape == x.shape
    assert made.dtype == torch.float32
    torch.testing.assert_close(made * 255, (made * 255).round(), atol=1e-4, rtol=0)  # bytes
    assert 0 <= float(made.min()) <= float(made.max()) <= 1
    assert not torch.equal(made, x)
    random = name not in ("defocus_blur", "zoom_blur", "brightness", "contrast", "pixelate", "jpeg_compression")
    assert torch.equal(made, corrupt_images(x, name, 3, sample_ids=torch.tensor([5, 9, 2, 7]), seed=2)) != random


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_grey_and_oblong_images_are_corrupted_too(name):
    x = photo(2, channels=1)[:, :, :20, :]
    assert corrupt_images(x, name, 5).shape == x.shape


def test_few_values_at_a_time_give_the_same_images(monkeypatch):
    x = photo(5)
    whole = corrupt_images(x, "snow", 4)
    monkeypatch.setattr("lipforge.corruptions.made.MOST_VALUES", 2 * 3 * 32 * 32)
    assert torch.equal(corrupt_images(x, "snow", 4), whole)


def test_large_images_get_the_parameters_of_imagenet_c():
    x = torch.full((1, 3, 65, 65), 102 / 255)
    assert set(SMALL) == set(LARGE) == set(CORRUPTIONS)
    assert (corrupt_images(x, "brightness", 1) * 255).unique().tolist() == [127.0]  # 0.4 + 0.1, cut down
    small = corrupt_images(x, "brightness", 1, parameters="cifar10-c")
    assert (small * 255).round().unique().tolist() == [114.0]  # 0.4 + 0.05


def test_gaussian_noise_has_its_deviation():
    x = np.full((8, 3, 32, 32), 0.5, np.float32)
    moved = effects.gaussian_noise(x, noise(8), 0.08) - x
    assert moved.std() == pytest.approx(0.08, rel=0.02)  # 24,576 numbers: 0.5 % of deviation
    assert abs(moved.mean()) < 0.002


def test_the_poisson_table_is_the_quantile_function_of_scipy():
    table, uniform = effects.poisson_table(50.0), np.linspace(1e-4, 1 - 1e-4, 199)
    size = len(table) // 256
    for level in (0, 1, 17, 255):
        counts = np.searchsorted(table, uniform + level) - level * size
        assert counts.tolist() == stats.poisson.ppf(uniform, 50 * level / 255).tolist()


def test_shot_noise_has_the_mean_and_variance_of_a_poisson_count():
    x = np.full((8, 3, 32, 32), 102 / 255, np.float32)
    found = effects.shot_noise(x, noise(8), 60.0)
    assert found.mean() == pytest.approx(0.4, abs=0.003)
    assert found.var() == pytest.approx(0.4 / 60, rel=0.05)


def test_impulse_noise_blackens_and_whitens_half_of_its_amount_each():
    found = effects.impulse_noise(np.full((8, 3, 32, 32), 0.5, np.float32), noise(8), 0.27)
    shares = [float((found == value).mean()) for value in (0.0, 1.0)]
    assert shares == pytest.approx([0.135, 0.135], abs=0.01)  # four deviations
    assert set(np.unique(found)) == {0.0, 0.5, 1.0}


def test_brightness_raises_the_value_of_hsv():
    x = photo(1)[0].numpy()
    found = effects.brightness(x[None], noise(1), 0.2)[0]
    for row, column in ((0, 0), (7, 20), (31, 3)):
        hue, saturation, value = colorsys.rgb_to_hsv(*x[:, row, column].tolist())
        expected = colorsys.hsv_to_rgb(hue, saturation, min(value + 0.2, 1.0))
        assert found[:, row, column].tolist() == pytest.approx(expected, abs=1e-6)
    assert effects.brightness(np.zeros((1, 3, 8, 8)), noise(1), 0.2).tolist() == np.full((1, 3, 8, 8), 0.2).tolist()


def test_contrast_shrinks_each_channel_around_its_mean():
    x = photo(2).numpy()
    found = effects.contrast(x, noise(2), 0.3)
    assert found.mean((2, 3)) == pytest.approx(x.mean((2, 3)), abs=1e-6)
    assert found.std((2, 3)) == pytest.approx(0.3 * x.std((2, 3)), rel=1e-4)


@pytest.mark.parametrize("settings", [SMALL["defocus_blur"][0], SMALL["defocus_blur"][4], LARGE["defocus_blur"][0]])
def test_defocus_blur_is_a_mean_over_a_disk(settings):
    point = np.zeros((1, 1, 33, 33), np.float32)
    point[0, 0, 16, 16] = 1
    found = effects.defocus_blur(point, noise(1), *settings)[0, 0]
    assert found.sum() == pytest.approx(1, abs=1e-5)
    assert found == pytest.approx(found.T, abs=1e-7)
    rows, columns = np.indices(found.shape) - 16
    assert found[np.hypot(rows, columns) > settings[0] + 2.5].max() < 1e-6  # the blur adds a pixel or two


def test_motion_blur_spreads_a_point_to_one_side_by_a_gaussian():
    point = np.zeros((1, 1, 33, 33), np.float32)
    point[0, 0, 16, 16] = 1
    found = effects._motion(point, np.array([0.0]), 5, 2.0)[0, 0, 16]
    weights = np.exp(-(np.arange(11) ** 2) / 8)
    assert found[16:5:-1] == pytest.approx(weights / weights.sum(), abs=1e-6)
    assert found[17:].sum() == 0
    down = effects._motion(point, np.array([90.0]), 5, 2.0)[0, 0, :, 16]
    assert down == pytest.approx(found, abs=1e-6)


def test_zoom_blur_is_the_mean_of_zooms_by_scipy():
    x = photo(1, size=31).numpy()
    zooms = [x[0]]
    for factor in np.arange(1, 1.16, 0.01):
        cropped = int(np.ceil(31 / factor))
        top = (31 - cropped) // 2
        zoomed = ndimage.zoom(x[0, :, top : top + cropped, top : top + cropped], (1, factor, factor), order=1)
        trim = (zoomed.shape[1] - 31) // 2
        zooms.append(zoomed[:, trim : trim + 31, trim : trim + 31])
    assert effects.zoom_blur(x, noise(1), *SMALL["zoom_blur"][2])[0] == pytest.approx(np.mean(zooms, axis=0), abs=1e-5)


def test_glass_blur_moves_pixels_by_at_most_its_reach():
    rows = np.broadcast_to(np.arange(32, dtype=np.float32)[:, None] / 255, (1, 3, 32, 32))
    found = 255 * effects.glass_blur(rows, noise(1), 0.05, 1, 1)
    moved = found - 255 * rows
    assert set(np.rint(moved[0, 0, 2:]).ravel().tolist()) == {0.0, -1.0}  # from the row above, or from itself
    assert not moved[0, 0, :2].any()


def test_a_displacement_of_whole_pixels_shifts_the_image():
    x = photo(1).numpy()
    rows, columns = np.indices((32, 32))
    found = effects._sampled(x, (rows + 3)[None], (columns - 2)[None], effects._reflected)
    assert found[0, :, :29, 2:] == pytest.approx(x[0, :, 3:, :30])
    assert found[0, :, 31, 2:] == pytest.approx(x[0, :, 29, :30])  # beyond the edge: ... 30 31 | 31 30 29
    mirrored = effects._sampled(x, (rows + 3)[None], (columns - 2)[None], effects._mirrored)
    assert mirrored[0, :, 31, 2:] == pytest.approx(x[0, :, 28, :30])  # ... 30 31 | 30 29 28
    half = effects._sampled(x, (rows + 0.5)[None], columns[None], effects._mirrored)
    assert half[0, :, :31] == pytest.approx((x[0, :, :31] + x[0, :, 1:]) / 2)


def test_an_elastic_transform_of_no_size_changes_nothing():
    x = photo(2).numpy()
    assert effects.elastic_transform(x, noise(2), 0.0, 0.0, 0.0) == pytest.approx(x, abs=1e-6)
    assert np.abs(effects.elastic_transform(x, noise(2), 0.0, 0.0, 2.0) - x).max() > 0.01


def test_fog_and_frost_lie_between_their_bounds():
    x = np.full((3, 3, 32, 32), 0.5, np.float32)
    found = effects.fog(x, noise(3), 1.5, 1.75)  # from 0.5 * 0.5 / 2 to 2 * 0.5 / 2, both reached
    assert (found.min((1, 2, 3)), found.max((1, 2, 3))) == (pytest.approx(0.125), pytest.approx(0.5))
    assert not effects.fog(0 * x, noise(3), 1.5, 1.75).any()
    added = effects.frost(x, noise(3), 0.8, 0.5) - 0.4
    assert 0 <= added.min() < added.max() <= 0.5


def test_snow_only_brightens():
    x = photo(2).numpy()
    assert (effects.snow(x, noise(2), *SMALL["snow"][3]) >= x - 1e-6).all()


def test_pixelate_by_a_half_takes_means_of_four_pixels():
    x = photo(1).numpy()
    blocks = x[0].reshape(3, 16, 2, 16, 2).mean((2, 4)).repeat(2, axis=1).repeat(2, axis=2)
    assert effects.pixelate(x, noise(1), 0.5)[0] == pytest.approx(blocks, abs=1.001 / 255)  # Pillow rounds each axis


def test_a_flat_image_passes_jpeg():
    x = np.full((1, 3, 16, 16), 128 / 255, np.float32)
    assert effects.jpeg_compression(x, noise(1), 10) == pytest.approx(x)


@pytest.mark.parametrize(
    ("shape", "name", "severity", "message"),
    [
        ((1, 3, 32, 32), "rain", 1, "corruptions must be among gaussian_noise, .*jpeg_compression, got 'rain'"),
        ((1, 3, 32, 32), "fogg", 1, "fog"),
        ((1, 3, 32, 32), "fog", 0, "severity must be one of 1, 2, 3, 4, 5, got 0"),
        ((1, 4, 32, 32), "fog", 1, r"1 or 3 channels .* got \(1, 4, 32, 32\)"),
        ((1, 3, 7, 32), "fog", 1, "sides of at least 8 pixels"),
    ],
)
def test_wrong_arguments_are_refused(shape, name, severity, message):
    with pytest.raises(InputError, match=message):
        corrupt_images(torch.zeros(shape), name, severity)
