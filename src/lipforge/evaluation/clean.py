"""Accuracy on clean images."""

from dataclasses import dataclass

import torch
from torch import nn

from lipforge.batching import BATCH_SIZE, ImageSource, batches, check_eval, device_of, image_count
from lipforge.errors import InputError, ModelError
from lipforge.evaluation.intervals import clopper_pearson
from lipforge.progress import progress


@dataclass(frozen=True)
class CleanResult:
    """How many of `count` images were classified correctly, and the 95 % interval of the accuracy."""

    count: int
    correct: int
    accuracy: float
    interval: tuple[float, float]

    def __str__(self) -> str:
        low, high = (100 * bound for bound in self.interval)
        return f"{100 * self.accuracy:.2f} [{low:.2f}, {high:.2f}] n={self.count}"


def clean_accuracy(
    model: nn.Module,
    data: ImageSource,
    *,
    batch_size: int = BATCH_SIZE,
    label: str = "clean accuracy",
    show_progress: bool | None = None,
) -> CleanResult:
    """The share of `data` that `model` classifies correctly; `data` must carry labels."""
    check_eval(model)
    device = device_of(model)
    correct = torch.zeros((), dtype=torch.int64, device=device)
    count = 0
    with torch.no_grad(), progress(label, image_count(data), show=show_progress) as step:
        for batch in batches(data, batch_size):
            if batch.labels is None:
                raise InputError("data must carry labels: pass a data set or an (images, labels) pair")
            logits = model(batch.images.to(device))
            if not logits.isfinite().all():
                bad = int((~logits.isfinite()).flatten(1).any(dim=1).nonzero()[0])
                raise ModelError(f"the model's logits are not finite for image {batch.first + bad}")
            correct += (logits.argmax(dim=1) == batch.labels.to(device)).sum()
            count += len(batch.images)
            step(len(batch.images))
    found = int(correct)
    return CleanResult(count, found, found / count, clopper_pearson(found, count))
