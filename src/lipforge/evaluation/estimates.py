"""What an evaluation would cost, from a short probe."""

import math
import statistics
import time
from collections.abc import Callable

import torch
from scipy.special import stdtrit
from torch import Tensor

from lipforge.attacks import AnyAttack, as_attack, attack_text
from lipforge.batching import LabelledSource
from lipforge.errors import InputError
from lipforge.evaluation.sizes import AUTO, BATCH_SIZE, BatchSize, chosen_size, forward_and_back, parse_batch_size
from lipforge.outputs import logits_in
from lipforge.progress import progress
from lipforge.results import Estimate
from lipforge.runs import Experiment, Watch, change_of
from lipforge.types import Classifier, Threat, check_threat

PROBE = 8
SHORT = 0.5  # seconds: passes that take less are timed on more images


def estimate(
    classifier: Classifier,
    data: LabelledSource,
    attack: AnyAttack,
    threat: Threat,
    *,
    label: str = "model",
    model_name: str = "",
    seed: int = 0,
    batch_size: BatchSize = BATCH_SIZE,
    probe: int = PROBE,
    devices: int = 1,
    show_progress: bool | None = None,
) -> Estimate:
    """The device-seconds that `evaluate` would take: passes per image of a few images, over passes per second."""
    check_threat(threat)
    if probe < 2 or devices < 1:
        raise InputError(f"probe must be at least 2 images and devices at least 1, got {probe} and {devices}")
    batch_size = parse_batch_size(batch_size)
    attack, experiment = as_attack(attack), Experiment.open(data, classifier)
    count = len(experiment.data)
    size = chosen_size(experiment, classifier) if batch_size == AUTO else batch_size
    x, y, ids = experiment.read(sorted({round(step * (count - 1) / (probe - 1)) for step in range(probe)}))
    watch = Watch()
    with progress(f"{label}: probe of {len(x)} images", None, show=show_progress, status=watch):
        result = attack.run(attack.prepared(classifier, x), x, y, threat=threat, seed=seed, sample_ids=ids, watch=watch)
    forwards, backwards = result.forwards.tolist(), result.backwards.tolist()
    with torch.no_grad():
        forward_rate = rate(lambda images: logits_in(classifier(images)), x, size)
    gradient_rate = rate(lambda images: forward_and_back(classifier, images), x, size)
    seconds = [(f - b) / forward_rate + b / gradient_rate for f, b in zip(forwards, backwards, strict=True)]
    mean = statistics.mean(seconds)
    student = float(stdtrit(len(seconds) - 1, 0.975)) if len(seconds) > 1 else 0.0
    spread = student * statistics.stdev(seconds) / math.sqrt(len(seconds)) if len(seconds) > 1 else 0.0
    return Estimate(
        label=label,
        model=model_name,
        attack=attack_text(attack),
        threat=str(threat),
        count=count,
        probe=len(x),
        forwards=statistics.mean(forwards),
        backwards=statistics.mean(backwards),
        forward_rate=forward_rate,
        gradient_rate=gradient_rate,
        device_seconds=count * mean,
        interval=(count * max(mean - spread, 0.0), count * (mean + spread)),
        devices=devices,
        wall_seconds=count * mean / devices,
        assumptions=(
            f"the remaining images cost as much as the {len(x)} of the probe; robust images cost most",
            f"passes run as fast as in batches of {size}; batches shrink as images are broken, which slows a GPU",
            *([f"all {devices} devices are as fast as this one and busy until the end"] if devices > 1 else []),
            "reading images, starting processes and the attack's own arithmetic are left out",
        ),
        change=change_of(classifier),
    )


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
