"""Random crops and flips that depend on (seed, image, epoch) only, so that a resumed run sees the same images."""

import torch
import torch.nn.functional as F
from torch import Tensor

from lipforge import rng


def augment(images: Tensor, sample_ids: Tensor, *, seed: int, epoch: int, crop: int, flip: bool) -> Tensor:
    """Each image shifted by up to `crop` pixels in each direction, with zeros moving in, and mirrored half the time."""
    if crop:
        offset = rng.integers(seed, sample_ids, stream="crop", shape=(2,), below=2 * crop + 1, counter=epoch)
        images = _shift(images, offset.to(images.device), crop)
    if flip:
        mirrored = rng.signs(seed, sample_ids, stream="flip", shape=(), counter=epoch).to(images.device) > 0
        images = torch.where(mirrored[:, None, None, None], images.flip(3), images)
    return images


def _shift(images: Tensor, offset: Tensor, crop: int) -> Tensor:
    """The window of the original size at `offset` (N, 2) in each image with a border of `crop` zeros."""
    count, channels, height, width = images.shape
    padded = F.pad(images, (crop, crop, crop, crop))
    rows = offset[:, :1] + torch.arange(height, device=images.device)
    columns = offset[:, 1:] + torch.arange(width, device=images.device)
    index = torch.arange(count, device=images.device)
    return padded[
        index[:, None, None, None],
        torch.arange(channels, device=images.device)[None, :, None, None],
        rows[:, None, :, None],
        columns[:, None, None, :],
    ]
