"""Accuracy under attack, shard by shard: it can be killed, resumed and shared, and gives the same numbers."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, get_args

import torch
from torch import Tensor, nn

from lipforge.attacks import Attack
from lipforge.batching import ImageData, check_eval, device_of
from lipforge.errors import InputError
from lipforge.evaluation.identity import attack_text, task_name
from lipforge.evaluation.intervals import Method
from lipforge.evaluation.results import About, RobustResult, gather
from lipforge.evaluation.shards import Job, has_images
from lipforge.evaluation.watch import Watch
from lipforge.pairs import as_data
from lipforge.ranks import is_first
from lipforge.runs import RunDir, open_task, work
from lipforge.runs.environment import lipforge_version
from lipforge.runs.identity import data_identity, identified
from lipforge.runs.tasks import digest_of
from lipforge.types import Classifier, Threat

BATCH_SIZE = 100
"""Images per batch, and per shard unless told otherwise: a divisor of the counts that people evaluate."""


def evaluate(
    classifier: Classifier,
    data: ImageData | tuple[Tensor, Tensor],
    attack: Attack,
    threat: Threat,
    *,
    run: RunDir | None = None,
    label: str = "model",
    model_name: str = "",
    seed: int = 0,
    batch_size: int = BATCH_SIZE,
    shard_size: int | None = None,
    save_images: bool = False,
    interval: Method = "clopper-pearson",
    identity: Mapping[str, Any] | None = None,
    device: torch.device | None = None,
    show: bool | None = None,
) -> RobustResult:
    """How many images of `data` stand against `attack`, image by image, with intervals, passes and doubts.

    With `run` every shard is kept: the same call again resumes, other processes may help, and torchrun's ranks share
    the shards. The numbers depend on the shard alone, so on none of that. `label` names the evaluation in the run;
    `identity` adds what a resumed call must agree on; a classifier that is no module needs it in a run.
    `save_images` keeps the adversarial images beside each shard, as float32.
    """
    source = as_data(data)
    shard_size = batch_size if shard_size is None else shard_size
    if batch_size < 1 or shard_size < 1:
        raise InputError(f"batch_size and shard_size must be at least 1, got {batch_size} and {shard_size}")
    if interval not in get_args(Method):
        raise InputError(f"the interval must be one of {', '.join(get_args(Method))}, got {interval!r}")
    if save_images and run is None:
        raise InputError("save_images needs a run directory to keep the images in; pass run=RunDir.open(path)")
    if isinstance(classifier, nn.Module):
        check_eval(classifier)
        device = device_of(classifier) if device is None else device
    job = Job(classifier, source, attack, threat, seed, batch_size, device)
    text = attack_text(attack)
    name = task_name(label, text, threat, seed)
    config = _config(job, identified(classifier, identity, in_run=run is not None))
    task = open_task(run, name, config, len(source), shard_size)
    if save_images:
        task = replace(task, complete=lambda images, shard: has_images(task, images, shard))
    watch = Watch()
    shards = work(
        task, lambda images: job.shard(images, watch, task if save_images else None), label, status=watch, show=show
    )
    images = digest_of(config["data"])
    about = About(label, model_name, source.name, text, str(threat), threat.norm, threat.eps, seed, images)
    result = gather(about, shards, interval)
    if run is not None and is_first():
        run.write_result(name, result)
    return result


def _config(job: Job, model: Mapping[str, Any]) -> dict[str, Any]:
    """Everything that determines the numbers; versions of other packages and the device are recorded, not compared."""
    return {
        "lipforge": lipforge_version(),
        "model": dict(model),
        "data": data_identity(job.data),
        "attack": attack_text(job.attack),
        "threat": {"norm": job.threat.norm, "eps": job.threat.eps},
        "seed": job.seed,
        "batch_size": job.batch_size,
    }
