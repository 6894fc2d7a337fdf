"""Images for a report: clean, perturbed, and the perturbation made visible, as PNGs inside JSON."""

import base64
import io
from collections.abc import Sequence
from itertools import zip_longest

import torch
from PIL import Image
from torch import Tensor

from lipforge.errors import InputError
from lipforge.results import Gallery, GalleryItem

SIDE = 224
"""Larger images are made smaller for the page; smaller ones stay as they are and are drawn with hard pixels."""


def make_gallery(
    clean: Tensor,
    adversarial: Tensor,
    labels: Sequence[int] | Tensor,
    before: Sequence[int] | Tensor,
    after: Sequence[int] | Tensor,
    *,
    class_names: Sequence[str] | None = None,
    count: int = 12,
    title: str = "Images and their perturbations",
    indices: Sequence[int] | None = None,
) -> Gallery:
    """The first `count` images that are classified correctly before the attack, broken and robust ones by turns.

    `clean` and `adversarial` (N, C, H, W) lie in [0, 1]; `before` and `after` are the classes predicted on them.
    `indices` number the images in their data set. The largest perturbation of any pixel is shown as black or white.
    """
    if clean.ndim != 4 or clean.shape != adversarial.shape or clean.shape[1] not in (1, 3):
        raise InputError(
            "clean and adversarial must be images of one shape (N, 1 or 3, H, W), "
            f"got {tuple(clean.shape)} and {tuple(adversarial.shape)}"
        )
    truth, first, last = ([int(value) for value in values] for values in (labels, before, after))
    for name, numbers in (("labels", truth), ("before", first), ("after", last)):
        if len(numbers) != len(clean):
            raise InputError(f"{name} must be one per image, got {len(numbers)} for {len(clean)} images")
    chosen = _by_turns(truth, first, last)[:count]
    delta = (adversarial - clean)[chosen].detach().float().cpu()
    largest = float(delta.abs().max())
    magnification = 0.5 / largest if largest > 0 else 1.0
    names = class_names if class_names is not None else [f"class {k}" for k in range(max(truth + first + last) + 1)]
    items = [
        GalleryItem(
            index=at if indices is None else int(indices[at]),
            label=names[truth[at]],
            before=names[first[at]],
            after=names[last[at]],
            clean=to_png(clean[at]),
            perturbation=to_png(0.5 + magnification * delta[place]),
            adversarial=to_png(adversarial[at]),
        )
        for place, at in enumerate(chosen)
    ]
    return Gallery(title, magnification, largest, tuple(items))


def to_png(image: Tensor) -> str:
    """An image (C, H, W) in [0, 1] as a PNG in base64; colours are rounded to 8 bits."""
    plane = (image.detach().float().cpu().clamp(0, 1) * 255).round().to(torch.uint8)
    picture = Image.fromarray(plane.expand(3, -1, -1).permute(1, 2, 0).contiguous().numpy())
    picture.thumbnail((SIDE, SIDE))
    out = io.BytesIO()
    picture.save(out, "PNG", optimize=True)
    return base64.b64encode(out.getvalue()).decode("ascii")


def _by_turns(labels: list[int], before: list[int], after: list[int]) -> list[int]:
    """Positions of images that are correct before the attack: one broken, one robust, and so on, each in order."""
    correct = [at for at, label in enumerate(labels) if before[at] == label]
    if not correct:
        raise InputError("no image is classified correctly before the attack, so there is none to show")
    broken = [at for at in correct if after[at] != labels[at]]
    robust = [at for at in correct if after[at] == labels[at]]
    return [at for both in zip_longest(broken, robust) for at in both if at is not None]
