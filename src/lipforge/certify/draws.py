"""Noisy copies of images, and the classes that a model gives them.

The noise of draw j of image i depends on (seed, stream, i, j) alone: not on the batch, the order, the worker or the
model. So two models that are certified with one seed face the same noise, and a run that was interrupted goes on as if
it had not been. Selection and estimation use different streams: estimating on the draws that chose the class would
void the confidence.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from lipforge import rng
from lipforge.errors import ModelError
from lipforge.types import Classifier

SELECTION, ESTIMATION = "smoothing-selection", "smoothing-estimation"
MOST_DRAWS = 2**32
"""Draws are numbered in the low word of a sample id, images in the high word."""


@dataclass(frozen=True)
class Noise:
    """Gaussian noise of deviation sigma, by seed."""

    sigma: float
    seed: int

    def add(self, images: Tensor, ids: Tensor, draws: Tensor, stream: str) -> Tensor:
        """Each image (M, C, H, W) with the noise of its draw; `ids` and `draws` are (M,). Not clipped to [0, 1]."""
        numbers = rng.normal(self.seed, (ids << 32) | draws, stream=stream, shape=images.shape[1:], dtype=images.dtype)
        return images + self.sigma * numbers


@torch.no_grad()
def count_classes(
    classifier: Classifier, images: Tensor, ids: Tensor, noise: Noise, *, stream: str, draws: int, batch_size: int
) -> Tensor:
    """Counts (N, K): how many of `draws` noisy copies of each image fall into each class.

    Batches run through the draws of all images, so they are full whatever the number of draws.
    """
    counts: Tensor | None = None
    flat = torch.arange(len(images) * draws, device=images.device)
    for part in torch.split(flat, batch_size):
        at = part // draws
        noisy = noise.add(images[at], ids[at], part % draws, stream)
        logits = checked_logits(classifier, noisy)
        if counts is None:
            counts = torch.zeros(len(images), logits.shape[1], dtype=torch.int64, device=images.device)
        counts.index_put_((at, logits.argmax(dim=1)), torch.ones_like(at), accumulate=True)
    assert counts is not None
    return counts


def checked_logits(classifier: Classifier, images: Tensor) -> Tensor:
    """The logits (N, K), or an error: a NaN would be counted as some class."""
    logits = classifier(images)
    if logits.ndim != 2 or len(logits) != len(images):
        raise ModelError(f"the model must return logits ({len(images)}, K), got {tuple(logits.shape)}")
    if logits.isnan().any():
        raise ModelError(
            "the model returned NaN logits for a noisy image; noise leaves [0, 1], so its first layer must bear that"
        )
    return logits
