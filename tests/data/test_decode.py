import numpy as np
import pytest
import torch
from PIL import Image

from lipforge.data.decode import UnreadableImage, crop_centre, prepare, read_image, resize_shorter, to_bytes
from tests.data.made import photo

SIZES = [(300, 400), (400, 300), (256, 256), (256, 511), (511, 256), (333, 257), (100, 90), (223, 1000), (225, 224)]


@pytest.mark.zoo
@pytest.mark.parametrize("interpolation", ["bicubic", "bilinear"])
@pytest.mark.parametrize(("height", "width"), SIZES)
def test_resize_and_crop_equal_torchvisions_bit_for_bit(height, width, interpolation):
    transforms = pytest.importorskip("torchvision.transforms")
    image = Image.fromarray(photo(height, height, width))
    peer = transforms.Compose(
        [
            transforms.Resize(256, interpolation=transforms.InterpolationMode(interpolation)),
            transforms.CenterCrop(224),
            transforms.ToTensor(),
        ]
    )
    ours = torch.from_numpy(to_bytes(prepare(image, 256, 224, interpolation))).float().div(255)
    assert torch.equal(ours, peer(image))


@pytest.mark.zoo
@pytest.mark.parametrize(("height", "width"), [(20, 40), (31, 33), (20, 21), (40, 20)])
def test_cropping_a_smaller_image_pads_it_as_torchvision_does(height, width):
    transforms = pytest.importorskip("torchvision.transforms")
    image = Image.fromarray(photo(1, height, width))
    assert np.array_equal(to_bytes(crop_centre(image, 32)), to_bytes(transforms.CenterCrop(32)(image)))


@pytest.mark.parametrize(
    ("size", "expected"), [((300, 400), (256, 341)), ((400, 300), (341, 256)), ((256, 900), (256, 900))]
)
def test_the_shorter_side_is_resized_and_the_longer_rounded_down(size, expected):
    assert resize_shorter(Image.new("RGB", size), 256, "bicubic").size == expected


def test_the_crop_is_the_middle():
    image = Image.fromarray(np.arange(7 * 9 * 3, dtype=np.uint8).reshape(7, 9, 3))
    assert np.array_equal(np.asarray(crop_centre(image, 3)), np.asarray(image)[2:5, 3:6])


@pytest.mark.parametrize("mode", ["L", "RGBA", "P", "CMYK"])
def test_every_colour_mode_becomes_three_bytes_per_pixel(mode, tmp_path):
    suffix = "jpg" if mode == "CMYK" else "png"
    Image.fromarray(photo(2, 40, 50)).convert(mode).save(tmp_path / f"a.{suffix}")
    image = read_image(tmp_path / f"a.{suffix}", None, None, "bicubic")
    assert (image.shape, str(image.dtype)) == ((3, 40, 50), "uint8")


def test_a_lossless_file_gives_its_own_pixels(tmp_path):
    pixels = photo(3, 33, 44)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    assert np.array_equal(read_image(tmp_path / "a.png", None, None, "bicubic"), pixels.transpose(2, 0, 1))


def damaged(path, damage):
    Image.fromarray(photo(4, 64, 64)).save(path)
    content = path.read_bytes()
    path.write_bytes({"empty": b"", "cut": content[: len(content) // 2], "html": b"<html>404</html>"}[damage])
    return path


@pytest.mark.parametrize("suffix", ["jpg", "png"])
@pytest.mark.parametrize("damage", ["empty", "cut", "html"])
def test_a_damaged_file_is_unreadable_and_named(tmp_path, suffix, damage):
    with pytest.raises(UnreadableImage, match=rf"bad\.{suffix}: "):
        read_image(damaged(tmp_path / f"bad.{suffix}", damage), 32, 32, "bicubic")


def test_a_missing_file_is_unreadable(tmp_path):
    with pytest.raises(UnreadableImage, match="No such file"):
        read_image(tmp_path / "gone.png", 32, 32, "bicubic")


def test_a_picture_far_too_large_for_memory_is_unreadable(tmp_path, monkeypatch):
    Image.new("1", (2000, 2000)).save(tmp_path / "bomb.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    with pytest.raises(UnreadableImage, match="exceeds limit"):
        read_image(tmp_path / "bomb.png", 32, 32, "bicubic")
