"""Our corruptions beside those of imagecorruptions, byte by byte, with the same random numbers.

    pip install imagecorruptions opencv-python-headless      (not in the dev extra)
    python benchmarks/corruptions.py [--images 3]

Images of CIFAR-10 enlarged to 224 x 224 pixels, with the parameters of ImageNet-C. imagecorruptions 1.1.2 was written
for an older NumPy, SciPy and scikit-image: three names that it uses are put back before it is imported. Its zoom_blur
and snow trim a zoomed image at its corner instead of its centre, its elastic_transform and frost are not the published
ones, and its impulse and shot noise draw in another way: these are left out. The last line is JSON; it is also written
to benchmarks/results/corruptions.json.
"""

import argparse
import functools
import importlib
import json
import sys
import types
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import scipy.ndimage
import torch
import torch.nn.functional as F
from PIL import Image

from lipforge.corruptions import SEVERITIES, effects
from lipforge.corruptions.settings import SETTINGS
from lipforge.data import load_data
from lipforge.records import write_json

RESULTS = Path(__file__).parent / "results" / "corruptions.json"
COMPARED = ("gaussian_noise", "defocus_blur", "glass_blur", "motion_blur", "fog", "brightness", "contrast", "pixelate",
            "jpeg_compression")  # fmt: skip


class Recorded(effects.Noise):
    """Random numbers that are also kept, in the order in which they were drawn."""

    drawn: list[Any] = []  # noqa: RUF012 - one list for all, emptied before each image

    def uniform(self, what: str, *shape: int, low: float = 0.0, high: float = 1.0) -> Any:
        return self.keep(super().uniform(what, *shape, low=low, high=high))

    def normal(self, what: str, *shape: int) -> Any:
        return self.keep(super().normal(what, *shape))

    def integers(self, what: str, *shape: int, low: int, high: int) -> Any:
        return self.keep(super().integers(what, *shape, low=low, high=high))

    def keep(self, numbers: Any) -> Any:
        self.drawn.append(numbers[0].astype(np.float64))
        return numbers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=3)
    options = parser.parse_args()
    peer = import_peer()
    x, _ = load_data("cifar10:test", limit=options.images).batch(range(options.images))
    x = (F.interpolate(x, size=(224, 224), mode="bicubic").clamp(0, 1) * 255).round() / 255
    rows = []
    for name in COMPARED:
        for severity in SEVERITIES:
            apart = np.concatenate([differences(peer, one[None].numpy(), name, severity).ravel() for one in x])
            row = {
                "corruption": name,
                "severity": severity,
                "largest": int(apart.max()),
                "share": float((apart > 0).mean()),
            }
            rows.append(row)
            print(
                f"{name:18} {severity}  largest {row['largest']} of 255, {100 * row['share']:.2f} % differ", flush=True
            )
    results = {"rows": rows, "images": options.images}
    write_json(RESULTS, results)
    print(json.dumps(results))


def import_peer() -> Any:
    """`imagecorruptions.corruptions`, with the names that it misses in newer packages."""
    old = types.ModuleType("scipy.ndimage.interpolation")
    old.map_coordinates = scipy.ndimage.map_coordinates  # type: ignore[attr-defined]  # a module made here
    sys.modules[old.__name__] = old
    np.float_ = np.float64  # type: ignore[attr-defined]  # gone since NumPy 2
    peer = importlib.import_module("imagecorruptions.corruptions")
    blur = importlib.import_module("skimage.filters").gaussian

    @functools.wraps(blur)
    def gaussian(image: Any, sigma: Any, multichannel: bool = False, **more: Any) -> Any:
        return blur(image, sigma, channel_axis=-1 if multichannel else None, **more)

    peer.gaussian = gaussian
    return peer


def differences(peer: Any, x: Any, name: str, severity: int) -> Any:
    """By how many 255ths each value of one image differs."""
    Recorded.drawn.clear()
    noise = Recorded(0, torch.zeros(1, dtype=torch.int64), f"{name}/{severity}")
    ours = effects.to_bytes(getattr(effects, name)(x, noise, *SETTINGS["imagenet-c"][name][severity - 1]))[0]
    numbers = iter(Recorded.drawn)
    moves = iter(Recorded.drawn[0].reshape(-1, 2).astype(int)) if name == "glass_blur" else iter(())
    image = Image.fromarray(np.rint(255 * x[0]).astype(np.uint8).transpose(1, 2, 0))

    def normal(size: Any, scale: float) -> Any:
        return scale * next(numbers).transpose(1, 2, 0)

    def uniform(low: float, high: float, size: Any = None) -> Any:
        return float(next(numbers)) if size is None else high * next(numbers)

    with mock.patch.multiple(np.random, normal=normal, uniform=uniform, randint=lambda *_, **__: next(moves)):
        theirs = np.asarray(getattr(peer, name)(image, severity))
    theirs = np.rint(theirs) if name == "motion_blur" else np.floor(theirs)  # as ImageMagick does, which it replaces
    return np.abs(theirs.transpose(2, 0, 1) - ours.astype(np.float64))


if __name__ == "__main__":
    main()
