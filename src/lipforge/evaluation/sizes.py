"""Images per batch: a number, or `auto`, which measures what is fastest on this device."""

import time
from typing import Any, Final, Literal

import torch
from torch import Tensor

from lipforge.errors import InputError, RunError, lacks_memory
from lipforge.logs import logger
from lipforge.outputs import logits_in
from lipforge.ranks import from_first, own_rank
from lipforge.runs import Experiment
from lipforge.types import Classifier

BATCH_SIZE = 100  # images per batch, and per shard unless told otherwise: a divisor of the counts that people evaluate
AUTO: Final = "auto"
BatchSize = int | Literal["auto"]
SMALLEST = 32  # images in the first batch that is measured; each further one has twice as many
GAIN = 1.05  # how many times as fast a larger batch must be
SHORT = 0.5  # seconds: passes that take less are repeated, and the fastest counts


def parse_batch_size(value: int | str) -> BatchSize:
    """A batch size from what was given.

    >>> parse_batch_size("64"), parse_batch_size("auto")
    (64, 'auto')
    """
    if value == AUTO:
        return AUTO
    if not str(value).isdecimal() or int(value) < 1:
        raise InputError(f"batch_size must be auto or a whole number of at least 1, got {value!r}")
    return int(value)


def chosen_size(experiment: Experiment, classifier: Classifier, most: int | None = None) -> int:
    """The fastest batch size, at most `most` and a quarter of a rank's share of the images, so that a rank has several
    shards; a run keeps the one it found first."""
    rank = own_rank()

    def measured() -> dict[str, Any]:
        count = len(experiment.data)
        x, own = experiment.read(range(min(SMALLEST, count))).x, -(-count // rank.count)
        share = min(own, max(SMALLEST, -(-own // 4)))
        size, speeds = fastest_size(classifier, x, share if most is None else min(most, share))
        logger.info("batch size %d; images per second by batch size: %s", size, speeds)
        return {"batch_size": size, "images_per_second": {str(each): speed for each, speed in speeds.items()}}

    def kept() -> int:
        found = measured() if experiment.run is None else experiment.run.once("batch_size", measured)
        size = found.get("batch_size") if isinstance(found, dict) else None
        if not isinstance(size, int) or size < 1:
            raise RunError("batch_size.json of the run directory is damaged; delete it to measure again")
        return size

    return from_first(kept() if rank.is_first else 0)


def fastest_size(classifier: Classifier, x: Tensor, most: int) -> tuple[int, dict[int, float]]:
    """The batch size, and the images per second of all that were measured: 32, 64, ... `most`, until one is not faster
    by 5 % than the one before, or does not fit into memory."""
    best, speeds = min(SMALLEST, most), dict[int, float]()
    size = best
    while size not in speeds:
        speeds[size] = images_per_second(classifier, x, size)
        if size != best and speeds[size] <= GAIN * speeds[best]:
            break
        best, size = size, min(2 * size, most)
    return best, speeds


def images_per_second(classifier: Classifier, x: Tensor, size: int) -> float:
    """How fast batches of that size, the images of `x` again and again, go forward and back; 0 if memory runs out."""
    images, best, began = x.repeat(-(-size // len(x)), 1, 1, 1)[:size], torch.inf, time.perf_counter()
    try:
        forward_and_back(classifier, images)  # the first pass allocates and chooses kernels
        while best == torch.inf or time.perf_counter() - began < SHORT:
            started = time.perf_counter()
            forward_and_back(classifier, images).sum().item()  # .item() waits for the device
            best = min(best, time.perf_counter() - started)
    except Exception as error:  # each allocator has its own
        if not lacks_memory(error):
            raise
        return 0.0
    return size / best


def forward_and_back(classifier: Classifier, images: Tensor) -> Tensor:
    """The gradient of the logits' logsumexp with respect to the images; their sum where the model gives no gradient."""
    images = images.detach().requires_grad_()
    with torch.enable_grad():
        value = logits_in(classifier(images)).logsumexp(dim=1).sum()
        gradient = torch.autograd.grad(value, images, allow_unused=True)[0] if value.requires_grad else None
    return value.detach() if gradient is None else gradient
