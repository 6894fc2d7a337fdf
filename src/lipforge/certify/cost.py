"""What certification would cost here, from a probe of two batches."""

import time
from dataclasses import dataclass

import torch
from torch import nn

from lipforge.batching import device_of
from lipforge.certify.config import Smoothing
from lipforge.certify.draws import SELECTION, checked_logits
from lipforge.certify.smoothing import BATCH_SIZE
from lipforge.certify.source import Labelled, Source
from lipforge.progress import duration
from lipforge.types import Classifier


@dataclass(frozen=True)
class CertifyCost:
    """Passes and seconds that a certification would take on this machine, in this process."""

    count: int
    forwards: int
    seconds: float
    seconds_per_image: float
    probed_forwards: int

    def __str__(self) -> str:
        return f"{self.count} images, {self.forwards:,} forward passes, about {duration(self.seconds)}"


@torch.no_grad()
def certify_cost(
    classifier: Classifier,
    data: Labelled,
    *,
    sigma: float = 0.25,
    n0: int = 100,
    n: int = 100_000,
    skip: int = 1,
    limit: int | None = None,
    batch_size: int = BATCH_SIZE,
) -> CertifyCost:
    """The cost of `certify` with the same arguments, from one timed batch of noise and logits after one to warm up."""
    smoothing, source = Smoothing(sigma, n0, n), Source(data, skip, limit)
    image, _ = source.read(source.positions[:1])
    device = device_of(classifier) if isinstance(classifier, nn.Module) else image.device
    size = min(batch_size, n)
    images, ids = image.to(device).expand(size, -1, -1, -1), torch.zeros(size, dtype=torch.int64, device=device)
    for _ in range(2):
        started = time.perf_counter()
        noisy = smoothing.noise.add(images, ids, torch.arange(size, device=device), SELECTION)
        checked_logits(classifier, noisy).argmax(dim=1).sum().item()  # .item() waits for the device
        seconds = time.perf_counter() - started
    count = len(source.positions)
    per_image = seconds / size * (n0 + n)
    return CertifyCost(count, count * (n0 + n), per_image * count, per_image, 2 * size)
