"""Accuracy under every corruption and severity, shard by shard: one corrupted batch is in memory at a time."""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lipforge.batching import LabelledSource
from lipforge.corruptions.files import open_published
from lipforge.corruptions.made import check_size, corrupt_images
from lipforge.corruptions.settings import (
    CORRUPTIONS,
    DEPARTURES,
    SEVERITIES,
    Parameters,
    check_corruptions,
    check_severities,
    parameters_for,
)
from lipforge.evaluation.robust import classified
from lipforge.results import MISCLASSIFIED, ROBUST, CorruptComparison, CorruptResult
from lipforge.results.corruption import corrupt_fields
from lipforge.runs import SHARD_SIZE, Experiment, RunDir, Shard, Watch, change_of, digest_of, slug
from lipforge.runs.identity import canonical
from lipforge.types import Classifier

Make = Callable[[str, int, Shard], Tensor]
PUBLISHED_SIDE: Mapping[Parameters, int] = {"cifar10-c": 32, "imagenet-c": 224}
TITLES: Mapping[Parameters, str] = {"cifar10-c": "CIFAR-10-C", "imagenet-c": "ImageNet-C"}


IMAGENET_IMAGES = 50_000  # of the validation set, over which AlexNet's errors were published


def corrupt(
    classifier: Classifier,
    data: LabelledSource,
    *,
    corruptions: Sequence[str] | None = None,
    severities: Sequence[int] | None = None,
    published: str | Path | None = None,
    run: RunDir | None = None,
    label: str = "model",
    model_name: str = "",
    seed: int = 0,
    shard_size: int = SHARD_SIZE,
    identity: Mapping[str, Any] | None = None,
    device: torch.device | None = None,
    show_progress: bool | None = None,
) -> CorruptResult:
    """Accuracy on clean images, and under each of the 15 standard corruptions at severities 1 to 5 (or some of them).

    The corruptions are made on the fly, with the published parameters of CIFAR-10-C for images of up to 64 pixels and
    of ImageNet-C above; `published` names a folder of either, in its own layout, whose images are read instead, and
    `data` are then the clean images that they were made from. What is random depends on (seed, corruption, severity,
    image) alone. Runs, labels and identities are as in `evaluate`.
    """
    names, steps = check_corruptions(corruptions), check_severities(severities)
    experiment = Experiment.open(
        data,
        classifier,
        run=run,
        shard_size=shard_size,
        identity=identity,
        device=device,
        show_progress=show_progress,
    )
    source, about, make, notes = _source(experiment, names, steps, published, seed)
    name = corrupt_name(label, source, names, steps, seed)
    config = {"corruptions": list(names), "severities": list(steps), "seed": seed, **about}
    task = experiment.task(name, {"model": classifier}, config)
    watch = Watch(_outcomes)
    shards = experiment.work(
        task, lambda shard: _shard(classifier, shard, names, steps, make, watch), title=label, status=watch
    )
    clean = "".join(shard["clean"] for shard in shards)
    right = {
        (corruption, severity): "".join(shard["right"][corruption][place] for shard in shards)
        for corruption in names
        for place, severity in enumerate(steps)
    }
    whole = (names, steps) == (CORRUPTIONS, SEVERITIES) and len(clean) == IMAGENET_IMAGES
    result = CorruptResult(
        label=label,
        model=model_name,
        data=experiment.data.name,
        source=source,
        seed=seed,
        **corrupt_fields(right, clean, relative_to_alexnet=whole and source == "ImageNet-C files"),
        forwards=sum(shard["forwards"] for shard in shards),
        seconds=sum(shard["seconds"] for shard in shards),
        notes=notes,
        data_digest=experiment.data_digest,
        change=change_of(classifier),
    )
    return experiment.finish(name, result)


def corrupt_name(label: str, source: str, corruptions: Sequence[str], severities: Sequence[int], seed: int) -> str:
    """What a result and its shards are called in a run directory; some corruptions or severities have a digest.

    >>> corrupt_name("base", "CIFAR-10-C files", CORRUPTIONS, SEVERITIES, seed=0)
    'corrupt__base__cifar-10-c-files'
    """
    whole = (tuple(corruptions), tuple(severities)) == (CORRUPTIONS, SEVERITIES)
    some = "" if whole else f"__{digest_of([list(corruptions), list(severities)])[:8]}"
    return f"corrupt__{slug(label)}__{slug(source.lower())}{some}{f'__seed-{seed}' if seed else ''}"


def corrupted_pair_name(found: CorruptComparison) -> str:
    """What a comparison is called in a run directory; other images, corruptions, severities or seeds make another."""
    cells = [(part.corruption, part.gained, part.lost) for part in found.corruptions]
    about = [found.source, found.seed, canonical(found.data), found.count, list(found.severities), cells]
    return f"corrupted__{slug(found.candidate)}-against-{slug(found.base)}__{digest_of(about)[:8]}"


def _source(
    experiment: Experiment, names: Sequence[str], steps: Sequence[int], published: str | Path | None, seed: int
) -> tuple[str, dict[str, Any], Make, tuple[str, ...]]:
    """Where corrupted images come from: a title, what identifies it, a function that makes them, and notes."""
    if published is not None:
        found = open_published(published, experiment.data, names, steps)
        return found.source, {"files": found.describe()}, found.images, ()
    first = experiment.read([0]).x
    check_size(first)
    height, width = first.shape[2:]
    own = parameters_for(height, width)

    def make(corruption: str, severity: int, shard: Shard) -> Tensor:
        return corrupt_images(shard.x, corruption, severity, sample_ids=shard.ids, seed=seed, parameters=own)

    notes = [f"{name} is not the published one: {why}" for name, why in DEPARTURES.items() if name in names]
    if (height, width) != (PUBLISHED_SIDE[own], PUBLISHED_SIDE[own]):
        notes.append(
            f"images have {height} x {width} pixels; the parameters of {TITLES[own]} are for {PUBLISHED_SIDE[own]} x "
            f"{PUBLISHED_SIDE[own]}"
        )
    return f"made as {TITLES[own]}", {"parameters": own}, make, tuple(notes)


def _shard(
    classifier: Classifier, shard: Shard, names: Sequence[str], steps: Sequence[int], make: Make, watch: Watch
) -> dict[str, Any]:
    """Which images of a shard are classified correctly, clean and in each cell, ready for JSON."""
    started, right = time.perf_counter(), {}
    clean = _marks(classified(classifier, shard)[1])
    for name in names:
        watch(name)
        cells = (shard._replace(x=make(name, severity, shard)) for severity in steps)
        right[name] = [_marks(classified(classifier, cell)[1]) for cell in cells]
    forwards = len(shard.x) * (1 + len(names) * len(steps))
    return {"clean": clean, "right": right, "forwards": forwards, "seconds": time.perf_counter() - started}


def _marks(correct: Tensor) -> str:
    return "".join("1" if right else "0" for right in correct.tolist())


def _outcomes(shard: Mapping[str, Any]) -> dict[str, list[str]]:
    """What the progress bar counts."""
    corrupted = "".join(word for words in shard["right"].values() for word in words)
    words = {"1": ROBUST, "0": MISCLASSIFIED}
    return {
        name: [words[mark] for mark in marks] for name, marks in (("clean", shard["clean"]), ("corrupted", corrupted))
    }
