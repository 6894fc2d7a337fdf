"""Certified accuracy by randomized smoothing (Cohen, Rosenfeld and Kolter 2019).

The smoothed classifier g answers with the class that f most probably gives to x + N(0, sigma^2 I). If that class has a
probability of at least p > 1/2, then g does not change inside the open l2 ball of radius sigma * Phi^-1(p) around x.
The first n0 draws choose a class; n fresh draws bound its probability from below with confidence 1 - alpha. n is fixed
beforehand and nothing is stopped early, so the confidence is the one that was asked for.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import nn

from lipforge.batching import check_eval, device_of
from lipforge.certify.binomial import lower_bound, radius_of
from lipforge.certify.config import Smoothing
from lipforge.certify.draws import ESTIMATION, SELECTION, count_classes
from lipforge.certify.results import About, CertifiedImage, CertifyResult, check_radii, default_radii, gather
from lipforge.certify.source import Labelled, Source
from lipforge.errors import InputError
from lipforge.ranks import is_first
from lipforge.runs import RunDir, open_task, work
from lipforge.runs.environment import lipforge_version
from lipforge.runs.identity import identified, slug
from lipforge.runs.tasks import digest_of
from lipforge.types import Classifier

BATCH_SIZE = 256
SHARD_DRAWS = 20_000
"""Draws that make a shard: what an interruption can lose. With n = 100,000 a shard is one image."""


def certify(
    classifier: Classifier,
    data: Labelled,
    *,
    sigma: float = 0.25,
    n0: int = 100,
    n: int = 100_000,
    alpha: float = 0.001,
    skip: int = 1,
    limit: int | None = None,
    only_correct: bool = False,
    radii: Sequence[float] | None = None,
    batch_size: int = BATCH_SIZE,
    run: RunDir | None = None,
    label: str = "model",
    model_name: str = "",
    seed: int = 0,
    identity: Mapping[str, Any] | None = None,
    show: bool | None = None,
) -> CertifyResult:
    """A claim for every `skip`-th image of `data` (at most `limit`), and certified accuracy over radii.

    Each claim holds with probability 1 - alpha. Classifiers that are certified with one seed face the same noise.
    `only_correct` saves the estimation of images whose selected class is wrong, without a change of the curve.

    With `run` every shard is kept: the same call again resumes, other processes may help, and the ranks of torchrun
    share the shards. `identity` adds what a resumed call must agree on; a classifier that is no module needs it.
    """
    smoothing, source = Smoothing(sigma, n0, n, alpha, seed, only_correct), Source(data, skip, limit)
    chosen = check_radii(default_radii(sigma) if radii is None else radii)
    if batch_size < 1:
        raise InputError(f"batch_size must be at least 1, got {batch_size}")
    if isinstance(classifier, nn.Module):
        check_eval(classifier)
    positions, name = source.positions, task_name(label, smoothing)
    model = identified(classifier, identity, in_run=run is not None)
    config = {"lipforge": lipforge_version(), "model": model, "data": source.describe(), **asdict(smoothing)}
    task = open_task(run, name, config, len(positions), max(1, SHARD_DRAWS // (n0 + n)))
    shards = work(
        task,
        lambda at: certify_images(classifier, source, positions[at.start : at.stop], smoothing, batch_size),
        f"certifying {label}",
        show=show,
    )
    digests = (digest_of(model), digest_of(config["data"]))
    result = gather(About(label, model_name, source.name, *digests, **asdict(smoothing)), shards, chosen)
    if run is not None and is_first():
        run.write_result(name, result)
    return result


def task_name(label: str, smoothing: Smoothing) -> str:
    """The name of a certification's shards and of its result in a run directory.

    >>> task_name("forged", Smoothing(sigma=0.5, n=1000))
    'certify__forged__sigma-0.5__n-1000'
    """
    seed = f"__seed-{smoothing.seed}" if smoothing.seed else ""
    correct = "__only-correct" if smoothing.only_correct else ""
    return f"certify__{slug(label)}__sigma-{smoothing.sigma:g}__n-{smoothing.n}{correct}{seed}"


def certify_images(
    classifier: Classifier, source: Source, positions: Sequence[int], smoothing: Smoothing, batch_size: int
) -> Mapping[str, Any]:
    """The claims for the images at these positions, ready for JSON, with the passes and seconds they took."""
    started = time.perf_counter()
    images, labels = source.read(positions)
    device = device_of(classifier) if isinstance(classifier, nn.Module) else images.device
    images, ids = images.to(device), torch.tensor(positions, device=device)
    first = count_classes(
        classifier, images, ids, smoothing.noise, stream=SELECTION, draws=smoothing.n0, batch_size=batch_size
    )
    if not 0 <= int(labels.min()) <= int(labels.max()) < first.shape[1]:
        raise InputError(f"labels must lie in [0, {first.shape[1]}), the model's classes, got {labels.tolist()}")
    selected = first.argmax(dim=1)
    kept = (selected == labels.to(device)) | (not smoothing.only_correct)
    hits = torch.zeros_like(selected)
    if kept.any():
        counts = count_classes(
            classifier,
            images[kept],
            ids[kept],
            smoothing.noise,
            stream=ESTIMATION,
            draws=smoothing.n,
            batch_size=batch_size,
        )
        hits[kept] = counts.gather(1, selected[kept, None]).squeeze(1)
    rows = zip(positions, labels.tolist(), selected.tolist(), hits.tolist(), kept.tolist(), strict=True)
    return {
        "images": [asdict(_claim(*row, smoothing)) for row in rows],
        "forwards": len(images) * smoothing.n0 + int(kept.sum()) * smoothing.n,
        "seconds": time.perf_counter() - started,
    }


def _claim(index: int, label: int, selected: int, hits: int, kept: bool, smoothing: Smoothing) -> CertifiedImage:
    draws = smoothing.n if kept else 0
    p_lower = lower_bound(hits, draws, smoothing.alpha) if kept else 0.0
    # At one half or below another class may be as probable: nothing can be claimed.
    prediction = selected if p_lower > 0.5 else None
    radius = radius_of(p_lower, smoothing.sigma)
    return CertifiedImage(index, label, prediction, radius, p_lower, selected, hits, draws)
