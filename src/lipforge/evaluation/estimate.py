"""What an evaluation would cost, from a short probe."""

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from scipy.special import stdtrit
from torch import Tensor, nn

from lipforge.attacks import Attack
from lipforge.batching import ImageData, check_eval, device_of
from lipforge.errors import InputError
from lipforge.evaluation.identity import attack_text
from lipforge.evaluation.robust import BATCH_SIZE
from lipforge.evaluation.watch import Watch
from lipforge.pairs import as_data
from lipforge.progress import progress
from lipforge.types import Classifier, Threat

PROBE = 8
SHORT = 0.5
"""Seconds: passes that take less are timed on more images."""


@dataclass(frozen=True)
class Estimate:
    """The predicted cost of an evaluation, and what the prediction rests on.

    `forwards` and `backwards` are passes per image, means over the probe; every backward pass has a forward pass of
    its own among `forwards`. `forward_rate` and `gradient_rate` are images per second without and with gradients.
    `interval` is the 95 % interval of `device_seconds` from the spread between the probe's images alone.
    """

    label: str
    model: str
    attack: str
    threat: str
    count: int
    probe: int
    forwards: float
    backwards: float
    forward_rate: float
    gradient_rate: float
    device_seconds: float
    interval: tuple[float, float]
    devices: int
    wall_seconds: float
    assumptions: tuple[str, ...]


def estimate(
    classifier: Classifier,
    data: ImageData | tuple[Tensor, Tensor],
    attack: Attack,
    threat: Threat,
    *,
    label: str = "model",
    model_name: str = "",
    seed: int = 0,
    batch_size: int = BATCH_SIZE,
    probe: int = PROBE,
    devices: int = 1,
    device: torch.device | None = None,
    show: bool | None = None,
) -> Estimate:
    """The device-seconds that `evaluate` would take: passes per image of a few images, over passes per second."""
    source = as_data(data)
    if probe < 2 or devices < 1:
        raise InputError(f"probe must be at least 2 images and devices at least 1, got {probe} and {devices}")
    if batch_size < 1:
        raise InputError(f"batch_size must be at least 1, got {batch_size}")
    if isinstance(classifier, nn.Module):
        check_eval(classifier)
        device = device_of(classifier) if device is None else device
    at = sorted({round(step * (len(source) - 1) / (probe - 1)) for step in range(probe)})
    x, y = (tensor if device is None else tensor.to(device) for tensor in source.batch(at))
    watch = Watch()
    with progress(f"{label}: probe of {len(at)} images", None, show=show, status=watch):
        forwards, backwards = passes_per_image(classifier, x, y, attack, threat, seed, watch)
    forward_rate = rate(lambda images: _forward(classifier, images), x, batch_size)
    gradient_rate = rate(lambda images: _gradient(classifier, images), x, batch_size)
    seconds = [(f - b) / forward_rate + b / gradient_rate for f, b in zip(forwards, backwards, strict=True)]
    count, mean = len(source), statistics.mean(seconds)
    student = float(stdtrit(len(seconds) - 1, 0.975)) if len(seconds) > 1 else 0.0
    spread = student * statistics.stdev(seconds) / math.sqrt(len(seconds)) if len(seconds) > 1 else 0.0
    return Estimate(
        label=label,
        model=model_name,
        attack=attack_text(attack),
        threat=str(threat),
        count=count,
        probe=len(at),
        forwards=statistics.mean(forwards),
        backwards=statistics.mean(backwards),
        forward_rate=forward_rate,
        gradient_rate=gradient_rate,
        device_seconds=count * mean,
        interval=(count * max(mean - spread, 0.0), count * (mean + spread)),
        devices=devices,
        wall_seconds=count * mean / devices,
        assumptions=(
            f"the other images cost what the {len(at)} of the probe did: those that stand cost most",
            f"passes run as fast as in batches of {batch_size}; batches shrink as images fall, which a GPU feels",
            *([f"all {devices} devices are as fast as this one and get shards until the end"] if devices > 1 else []),
            "reading images, starting processes and the attack's own arithmetic are left out",
        ),
    )


def passes_per_image(
    classifier: Classifier, x: Tensor, y: Tensor, attack: Attack, threat: Threat, seed: int, watch: Watch | None = None
) -> tuple[list[int], list[int]]:
    """Forwards and backwards that each image took, the clean one among them."""
    result = attack.run(classifier, x, y, threat=threat, seed=seed, watch=watch)
    return result.forwards.tolist(), result.backwards.tolist()


def rate(work: Callable[[Tensor], Tensor], x: Tensor, most: int) -> float:
    """Images per second of `work` on as large a batch, up to `most`, as it takes to run for half a second."""
    size = min(len(x), most)
    while True:
        images = x.repeat(-(-size // len(x)), 1, 1, 1)[:size]
        work(images).sum().item()
        started = time.perf_counter()
        work(images).sum().item()  # .item() waits for the device
        seconds = time.perf_counter() - started
        if seconds > SHORT or size == most:
            return size / seconds
        size = min(4 * size, most)


@torch.no_grad()
def _forward(classifier: Classifier, images: Tensor) -> Tensor:
    return classifier(images)


def _gradient(classifier: Classifier, images: Tensor) -> Tensor:
    images = images.detach().requires_grad_()
    with torch.enable_grad():
        return torch.autograd.grad(classifier(images).logsumexp(dim=1).sum(), images)[0]
