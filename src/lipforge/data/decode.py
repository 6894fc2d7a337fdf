"""One image file as the bytes that RobustBench's ImageNet evaluation would feed a model, by Pillow alone."""

from pathlib import Path
from typing import Literal

import numpy as np
from PIL import Image

from lipforge.data.base import Bytes

Interpolation = Literal["bicubic", "bilinear"]
FILTERS = {"bicubic": Image.Resampling.BICUBIC, "bilinear": Image.Resampling.BILINEAR}


# Pillow would also hand PostScript to an interpreter: a data file must not start a program.
FORMATS = ("JPEG", "PNG", "BMP", "GIF", "PPM", "TIFF", "WEBP")


class UnreadableImage(Exception):  # noqa: N818 - it is caught inside this package and never reaches a user
    """A file that Pillow cannot decode as an image."""


def read_image(path: str | Path, resize: int | None, crop: int | None, interpolation: Interpolation) -> Bytes:
    """The image in `path` as RGB bytes (3, H, W), its shorter side resized, its centre cropped."""
    try:
        with Image.open(path, formats=FORMATS) as image:
            return to_bytes(prepare(image.convert("RGB"), resize, crop, interpolation))
    except (OSError, SyntaxError, ValueError, EOFError, Image.DecompressionBombError) as error:
        # Pillow names some damage in words of its own (SyntaxError for a broken PNG).
        reason = str(error).replace(f" '{path}'", "").replace(str(path), "it")
        raise UnreadableImage(f"{path}: {reason}") from None


def prepare(image: Image.Image, resize: int | None, crop: int | None, interpolation: Interpolation) -> Image.Image:
    """`image` with its shorter side of `resize` pixels, then the middle `crop` x `crop`; None leaves a step out."""
    if resize is not None:
        image = resize_shorter(image, resize, interpolation)
    return image if crop is None else crop_centre(image, crop)


def resize_shorter(image: Image.Image, size: int, interpolation: Interpolation) -> Image.Image:
    """`image` scaled so that its shorter side has `size` pixels; the longer side is rounded down."""
    short = min(image.size)
    if short == size:
        return image
    width, height = (size if side == short else int(size * side / short) for side in image.size)
    return image.resize((width, height), FILTERS[interpolation])


def crop_centre(image: Image.Image, size: int) -> Image.Image:
    """The middle `size` x `size` pixels, with black around an image that is smaller."""
    # An odd margin, as torchvision has it: a cut starts at the nearest even pixel, padding puts its smaller half first.
    left, top = (round((side - size) / 2) if side >= size else -((size - side) // 2) for side in image.size)
    return image.crop((left, top, left + size, top + size))


def to_bytes(image: Image.Image) -> Bytes:
    """RGB bytes (3, H, W) of an image."""
    return np.ascontiguousarray(np.asarray(image.convert("RGB"), dtype=np.uint8).transpose(2, 0, 1))
