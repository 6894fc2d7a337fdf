"""The 15 standard corruptions, on batches of images.

Each function takes images (N, C, H, W) in [0, 1] as float32, the `Noise` of these images, and the parameters of its
severity; what it returns is clipped and cut down to bytes by `corrupt_images`, as the published images are.
"""

import io
import math
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from PIL import Image
from scipy import ndimage
from scipy.special import pdtr

from lipforge import rng

Array: TypeAlias = Any  # a NumPy array: to mypy, arithmetic of arrays is Any in any case

TINTS = np.array([(0.30, 0.58, 0.65), (0.80, 0.82, 0.86), (0.56, 0.62, 0.67), (0.42, 0.47, 0.51)], np.float32)
"""Mean colours of the published photographs of frost, which our textures take; `FROST_SPREAD` is their deviation."""
FROST_SPREAD = 0.07

LUMA = np.array((0.299, 0.587, 0.114), np.float32)


class Noise(NamedTuple):
    """Random numbers of some images: they depend on the seed, the stream and the image's id alone."""

    seed: int
    ids: torch.Tensor
    stream: str

    def uniform(self, what: str, *shape: int, low: float = 0.0, high: float = 1.0) -> Array:
        """Numbers (N, *shape) in [low, high)."""
        found = rng.uniform(self.seed, self.ids, stream=f"{self.stream}/{what}", shape=shape, low=low, high=high)
        return found.numpy()

    def normal(self, what: str, *shape: int) -> Array:
        """Standard normal numbers (N, *shape)."""
        return rng.normal(self.seed, self.ids, stream=f"{self.stream}/{what}", shape=shape).numpy()

    def integers(self, what: str, *shape: int, low: int, high: int) -> Array:
        """Whole numbers (N, *shape) in [low, high)."""
        stream = f"{self.stream}/{what}"
        return low + rng.integers(self.seed, self.ids, stream=stream, shape=shape, below=high - low).numpy()


def gaussian_noise(x: Array, noise: Noise, deviation: float) -> Array:
    return x + deviation * noise.normal("noise", *x.shape[1:])


def shot_noise(x: Array, noise: Noise, photons: float) -> Array:
    """A Poisson count of mean `photons` * x, over `photons`: the count at which its distribution passes a uniform
    number, looked up in one table for all 256 levels."""
    table = poisson_table(photons)
    level = np.rint(255 * x).astype(np.int64)
    # Half a step of the uniform numbers above 0, where the table of the level below ends.
    passed = np.searchsorted(table, noise.uniform("count", *x.shape[1:]) + (level + 2.0**-25))
    return (passed - level * (len(table) // 256)) / photons


def impulse_noise(x: Array, noise: Noise, amount: float) -> Array:
    """Each value becomes 0 or 1 with probability amount / 2 each."""
    chance = noise.uniform("impulse", *x.shape[1:])
    return np.where(chance < amount, np.where(chance < amount / 2, 0.0, 1.0), x)


def defocus_blur(x: Array, noise: Noise, radius: float, blur: float) -> Array:
    return ndimage.correlate(x, _disk(radius, blur)[None, None], mode="mirror")


def glass_blur(x: Array, noise: Noise, sigma: float, reach: float, rounds: float) -> Array:
    """Blurred, then each pixel replaced by a random neighbour, `rounds` times from the last to the first, and blurred.

    The published code means to swap the two pixels, but copies one over the other; the published images are like that.
    """
    far = int(reach)
    rows, columns = (range(size - far, far, -1) for size in x.shape[2:])
    # Pixel by pixel of all images together, with an image's channels side by side.
    pixels = np.ascontiguousarray(to_bytes(_gaussian(x, sigma)).transpose(2, 3, 0, 1))
    moves = noise.integers("moves", int(rounds), len(rows), len(columns), 2, low=-far, high=far)
    moves, every = np.ascontiguousarray(moves.transpose(1, 2, 3, 4, 0)), np.arange(len(x))
    for turn in moves:
        for row, line in zip(rows, turn, strict=True):
            for column, (right, down) in zip(columns, line, strict=True):
                pixels[row, column] = pixels[row + down, column + right, every]
    return _gaussian(pixels.transpose(2, 3, 0, 1).astype(np.float32) / 255, sigma)


def motion_blur(x: Array, noise: Noise, radius: float, sigma: float) -> Array:
    found = _motion(x, noise.uniform("angle", low=-45.0, high=45.0), int(radius), sigma)
    return np.rint(255 * found) / 255  # ImageMagick rounds, where the others are cut down


def zoom_blur(x: Array, noise: Noise, steps: float, step: float) -> Array:
    """The mean of the image and of its centre magnified by 1, 1 + step, ..., in `steps` steps."""
    found = x.copy()
    # By arange, as published: where a size ends in .5, the rounding of the factor decides.
    for factor in np.arange(1, 1 + (steps - 0.5) * step, step):
        found += _zoomed(x, float(factor))
    return found / (steps + 1)


def snow(
    x: Array, noise: Noise, mean: float, deviation: float, zoom: float, least: float, radius: float, sigma: float,
    kept: float,
) -> Array:  # fmt: skip
    """Flakes of normal noise above `least`, blurred in a direction downwards, on a paler image."""
    flakes = _zoomed(mean + deviation * noise.normal("flakes", 1, *x.shape[2:]), zoom)
    flakes = to_bytes(np.where(flakes < least, 0.0, flakes)) / np.float32(255)
    flakes = _motion(flakes, noise.uniform("angle", low=-135.0, high=-45.0), int(radius), sigma)
    flakes = np.rint(255 * flakes) / 255
    pale = np.maximum(x, 1.5 * _grey(x) + 0.5)
    return kept * x + (1 - kept) * pale + flakes + flakes[:, :, ::-1, ::-1]


def frost(x: Array, noise: Noise, kept: float, added: float) -> Array:
    """A pale texture of ridges over the image: not the published photographs, which do not come with lipforge, but of
    their mean colours, deviation and roughness."""
    side = _power_above(max(x.shape[2:]))
    # As rough as the photographs: neighbouring pixels correlate by about 0.8.
    field = _plasma(noise, side, 1.35 if side <= 64 else 1.1)[:, : x.shape[2], : x.shape[3]]
    ridges = -np.abs(field - field.mean((1, 2), keepdims=True))
    ridges -= ridges.mean((1, 2), keepdims=True)
    ridges *= FROST_SPREAD / np.maximum(ridges.std((1, 2), keepdims=True), 1e-6)
    tint = TINTS[noise.integers("tint", low=0, high=len(TINTS))]
    tint = tint if x.shape[1] == 3 else tint.mean(axis=1, keepdims=True)
    return kept * x + added * np.clip(tint[:, :, None, None] + ridges[:, None], 0, 1)


def fog(x: Array, noise: Noise, thickness: float, decay: float) -> Array:
    brightest = x.max(axis=(1, 2, 3), keepdims=True)
    field = _plasma(noise, _power_above(max(x.shape[2:])), decay)[:, None, : x.shape[2], : x.shape[3]]
    return (x + thickness * field) * brightest / (brightest + thickness)


def brightness(x: Array, noise: Noise, added: float) -> Array:
    """The value of HSV, the largest channel, raised by `added`; hue and saturation stay, so the channels scale."""
    value = x.max(axis=1, keepdims=True)
    raised = np.minimum(value + added, 1.0)
    return np.where(value > 0, x * (raised / np.where(value > 0, value, 1.0)), raised)


def contrast(x: Array, noise: Noise, kept: float) -> Array:
    mean = x.mean(axis=(2, 3), keepdims=True, dtype=np.float64).astype(np.float32)
    return (x - mean) * kept + mean


def elastic_transform(x: Array, noise: Noise, size: float, sigma: float, affine: float) -> Array:
    """A random affine map, then displacements of a smooth random field."""
    height, width = x.shape[2:]
    rows, columns = np.meshgrid(np.arange(height), np.arange(width), indexing="ij")
    centre, side = np.array((width // 2, height // 2)), min(height, width) // 3
    corners = centre + side * np.array(((1, 1), (1, -1), (-1, -1)))
    moved = corners + noise.uniform("affine", 3, 2, low=-affine, high=affine).astype(np.float64)
    # From the moved corners back: the map that says where each pixel comes from.
    back = np.linalg.solve(np.concatenate([moved, np.ones((len(x), 3, 1))], axis=2), np.tile(corners, (len(x), 1, 1)))
    source = np.stack([columns, rows, np.ones_like(rows)], axis=2) @ back[:, None]
    x = _sampled(x, source[..., 1], source[..., 0], _mirrored)
    right, down = (
        size * _gaussian(noise.uniform(name, height, width, low=-1.0, high=1.0), sigma, mode="reflect", truncate=3.0)
        for name in ("right", "down")
    )
    return _sampled(x, rows + down, columns + right, _reflected)


def pixelate(x: Array, noise: Noise, kept: float) -> Array:
    def one(image: Image.Image) -> Image.Image:
        small = image.resize((int(image.width * kept), int(image.height * kept)), Image.Resampling.BOX)
        return small.resize(image.size, Image.Resampling.BOX)

    return _by_pillow(x, one)


def jpeg_compression(x: Array, noise: Noise, quality: float) -> Array:
    def one(image: Image.Image) -> Image.Image:
        file = io.BytesIO()
        image.save(file, "JPEG", quality=int(quality))
        return Image.open(file, formats=("JPEG",))

    return _by_pillow(x, one)


def to_bytes(x: Array) -> Array:
    """Values in [0, 1] cut down to whole 255ths, as uint8; a hair more keeps what is whole but for rounding."""
    return np.floor(np.clip(x, 0, 1) * 255 + 1e-4).astype(np.uint8)


def _by_pillow(x: Array, change: Callable[[Image.Image], Image.Image]) -> Array:
    """Each image changed as one of Pillow's."""
    images = np.rint(255 * x).astype(np.uint8)
    grey = x.shape[1] == 1
    found = [change(Image.fromarray(one[0] if grey else one.transpose(1, 2, 0))) for one in images]
    made = np.stack([np.asarray(one) for one in found])
    return (made[:, None] if grey else made.transpose(0, 3, 1, 2)).astype(np.float32) / 255


@cache
def poisson_table(photons: float) -> Array:
    """For each level of 256 its number plus P(count <= k) at the mean photons * level / 255, k = 0, 1, ...: it rises
    throughout, so that one search finds counts for all levels."""
    counts = np.arange(math.ceil(photons + 12 * math.sqrt(photons) + 12))
    level = np.arange(256)[:, None]
    return (level + pdtr(counts, photons * level / 255)).ravel()


@cache
def _disk(radius: float, blur: float) -> Array:
    """A disk of weights, blurred a little, without the empty lines around it. Where the disk reaches the edge of its
    square, the blur changes the sum of the weights, as it does in the published code."""
    reach, taps = (8, 3) if radius <= 8 else (int(radius), 5)
    axis = np.arange(-reach, reach + 1)
    disk = (axis[:, None] ** 2 + axis**2 <= radius**2).astype(np.float32)
    disk /= disk.sum()
    weights = np.exp(-((np.arange(taps) - taps // 2) ** 2) / (2 * blur**2))
    for dim in (0, 1):
        disk = ndimage.correlate1d(disk, weights / weights.sum(), axis=dim, mode="mirror")
    used = np.flatnonzero(disk.any(axis=0))
    return disk[used[0] : used[-1] + 1, used[0] : used[-1] + 1]


def _gaussian(x: Array, sigma: float, mode: str = "nearest", truncate: float = 4.0) -> Array:
    """Blurred along the last two axes."""
    for axis in (-2, -1) if sigma > 0 else ():
        x = ndimage.gaussian_filter1d(x, sigma, axis=axis, mode=mode, truncate=truncate)
    return x


def _motion(x: Array, degrees: Array, radius: int, sigma: float) -> Array:
    """Blurred to one side, each image at its angle, with the kernel and the pixels of ImageMagick's motion blur."""
    taps = np.arange(2 * radius + 1)
    weights = np.exp(-(taps**2) / (2 * sigma**2))
    angle, found = np.deg2rad(degrees), np.zeros_like(x)
    every, channels = np.arange(len(x))[:, None, None, None], np.arange(x.shape[1])[None, :, None, None]
    for tap, weight in zip(taps, weights / weights.sum(), strict=True):
        at = []
        for size, part in zip(x.shape[2:], (np.sin(angle), np.cos(angle)), strict=True):
            moved = np.arange(size) + np.ceil(tap * part - 0.5).astype(np.int64)[:, None]
            at.append(np.clip(moved, 0, size - 1))
        found += np.float32(weight) * x[every, channels, at[0][:, None, :, None], at[1][:, None, None, :]]
    return found


def _zoomed(x: Array, factor: float) -> Array:
    """The centre of each image, magnified to its size."""
    first, second = (_zoom_matrix(size, factor) for size in x.shape[2:])
    return first @ x @ second.T


@cache
def _zoom_matrix(size: int, factor: float) -> Array:
    """The linear map (size, size) of one axis: crop to the centre, interpolate as SciPy does, trim."""
    cropped = math.ceil(size / factor)
    above = (size - cropped) // 2
    made = ndimage.zoom(np.eye(cropped, dtype=np.float32), (factor, 1), order=1)
    trim = (len(made) - size) // 2
    found = np.zeros((size, size), np.float32)
    found[:, above : above + cropped] = made[trim : trim + size]
    return found


def _plasma(noise: Noise, side: int, decay: float) -> Array:
    """Fields (N, side, side) in [0, 1] by midpoint displacement on a torus: at each scale the middles of squares, then
    of their sides, are the mean of four neighbours and a random step, which is smaller at the next scale."""
    field, reach, step = np.zeros((len(noise.ids), side, side)), 100.0, side
    while step >= 2:
        half = step // 2

        def displaced(four: Array, name: str, reach: float = reach, step: int = step) -> Array:
            moves = noise.uniform(f"{name} {step}", *four.shape[1:], low=-1.0, high=1.0)
            return four / 4 + reach**2 * moves.astype(np.float64)

        corners = field[:, ::step, ::step]
        across, down = np.roll(corners, -1, axis=2), np.roll(corners, -1, axis=1)
        middle = displaced(corners + across + down + np.roll(across, -1, axis=1), "squares")
        field[:, half::step, half::step] = middle
        tops = displaced(corners + across + middle + np.roll(middle, 1, axis=1), "tops")
        sides = displaced(corners + down + middle + np.roll(middle, 1, axis=2), "sides")
        field[:, ::step, half::step], field[:, half::step, ::step] = tops, sides
        step, reach = half, reach / decay
    field -= field.min(axis=(1, 2), keepdims=True)
    return (field / field.max(axis=(1, 2), keepdims=True)).astype(np.float32)


def _sampled(x: Array, rows: Array, columns: Array, inside: Callable[[Array, int], Array]) -> Array:
    """The images at these places (N, H, W), by bilinear interpolation; `inside` says what lies beyond the edges."""
    every, found = np.arange(len(x))[:, None, None], 0.0
    top, left = np.floor(rows).astype(np.int64), np.floor(columns).astype(np.int64)
    for down in (0, 1):
        for right in (0, 1):
            weight = (1 - np.abs(rows - top - down)) * (1 - np.abs(columns - left - right))
            pixels = x[every, :, inside(top + down, x.shape[2]), inside(left + right, x.shape[3])]
            found = found + weight.astype(np.float32)[..., None] * pixels
    return np.moveaxis(np.asarray(found), 3, 1)


def _mirrored(at: Array, size: int) -> Array:
    """Positions as in d c b | a b c d | c b a."""
    around = at % (2 * size - 2)
    return np.minimum(around, 2 * size - 2 - around)


def _reflected(at: Array, size: int) -> Array:
    """Positions as in c b a | a b c d | d c b."""
    around = at % (2 * size)
    return np.minimum(around, 2 * size - 1 - around)


def _grey(x: Array) -> Array:
    return np.einsum("nchw,c->nhw", x, LUMA)[:, None] if x.shape[1] == 3 else x


def _power_above(size: int) -> int:
    return 1 << (size - 1).bit_length()
