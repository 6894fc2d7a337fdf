"""Corrupted images made on the fly: bytes in, bytes out, the same for an image in every batch."""

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lipforge.batching import check_images
from lipforge.corruptions import effects
from lipforge.corruptions.settings import SETTINGS, SEVERITIES, Parameters, check_corruptions, parameters_for
from lipforge.errors import InputError

LEAST_SIDE = 8
MOST_VALUES = 2**21
"""Values that are corrupted at once: what bounds the memory that random numbers take."""


def corrupt_images(
    images: Tensor,
    corruption: str,
    severity: int,
    *,
    sample_ids: Tensor | None = None,
    seed: int = 0,
    parameters: Parameters | None = None,
) -> Tensor:
    """Images (N, C, H, W) in [0, 1] under one of the 15 standard corruptions at a severity from 1 to 5.

    Values are rounded to bytes first and are whole 255ths after it, as in the published files. What is random depends
    on (seed, corruption, severity, id) alone; ids are 0, 1, ... by default. `parameters` are those of CIFAR-10-C up to
    64 pixels, of ImageNet-C above.

    >>> grey = torch.full((1, 3, 32, 32), 102 / 255)
    >>> corrupt_images(grey, "brightness", 5).unique() * 255  # 0.3 brighter
    tensor([178.])
    """
    (name,) = check_corruptions([corruption])
    if severity not in SEVERITIES:
        raise InputError(f"severity must be one of 1, 2, 3, 4, 5, got {severity!r}")
    check_images(images)
    check_size(images)
    ids = torch.arange(len(images)) if sample_ids is None else sample_ids.cpu()
    if len(ids) != len(images):
        raise InputError(f"sample_ids must be one per image, got {len(ids)} for {len(images)} images")
    own = parameters_for(*images.shape[2:]) if parameters is None else parameters
    settings, effect = SETTINGS[own][name][severity - 1], getattr(effects, name)
    size = max(1, MOST_VALUES // images[0].numel())
    made = []
    for part, own_ids in zip(torch.split(images, size), torch.split(ids, size), strict=True):
        noise = effects.Noise(seed, own_ids, f"corrupt/{name}/{severity}")
        x: npt.NDArray[np.float32] = np.rint(255 * part.cpu().numpy()).astype(np.float32) / np.float32(255)
        made.append(torch.from_numpy(effects.to_bytes(effect(x, noise, *settings))))
    return (torch.cat(made).to(torch.float32) / 255).to(images.device, images.dtype)


def check_size(images: Tensor) -> None:
    """Raise unless these are images that the corruptions are defined for."""
    if images.ndim != 4 or images.shape[1] not in (1, 3) or min(images.shape[2:]) < LEAST_SIDE or not len(images):
        raise InputError(
            f"images must be (N, C, H, W) with 1 or 3 channels and sides of at least {LEAST_SIDE} pixels, "
            f"got {tuple(images.shape)}"
        )
