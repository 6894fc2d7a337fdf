"""The probe after each epoch, and the guard against catastrophic overfitting that acts on it.

Training on one-step attacks can collapse within an epoch: the model learns to hide its gradient from the single step
and loses all robustness against several. The probe attacks held-out training images with ten steps. Where its accuracy
falls below half of the best so far, and by more than 5 points, the guard goes back to the last good epoch and takes
steps three quarters as large from there on: smaller steps leave more of the ball's interior in the training images.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from lipforge.attacks.base import is_fooled
from lipforge.attacks.pgd import PGD
from lipforge.batching import BATCH_SIZE
from lipforge.training.objectives import eval_mode
from lipforge.types import Threat

PROBE = PGD(steps=10)
SHRINK = 0.75
MOST_ROLLBACKS = 3


class Accuracy(NamedTuple):
    """Shares of the held-out images: classified correctly, and still so under the probe."""

    clean: float
    pgd: float


def probe(model: nn.Module, images: Tensor, labels: Tensor, *, threat: Threat, seed: int) -> Accuracy:
    """Clean and PGD-10 accuracy in eval mode; only correctly classified images are attacked."""
    clean = robust = 0
    with eval_mode(model):
        for first in range(0, len(images), BATCH_SIZE):
            x, y = images[first : first + BATCH_SIZE], labels[first : first + BATCH_SIZE]
            ids = torch.arange(first, first + len(x), device=x.device)
            right = ~is_fooled(model, x, y)
            x, y, ids = x[right], y[right], ids[right]
            x_adv = PROBE(model, x, y, threat=threat, seed=seed, sample_ids=ids)
            clean += len(x)
            robust += int((~is_fooled(model, x_adv, y)).sum()) if len(x) else 0
    return Accuracy(clean / len(images), robust / len(images))


def has_collapsed(pgd: float, best: float) -> bool:
    """Whether PGD accuracy fell from `best` so far that it cannot be chance.

    >>> has_collapsed(0.02, best=0.35), has_collapsed(0.30, best=0.35), has_collapsed(0.0, best=0.04)
    (True, False, False)
    """
    return pgd < best / 2 and best - pgd > 0.05
