"""Certified accuracy by randomized smoothing (Cohen, Rosenfeld and Kolter 2019).

The smoothed classifier g answers with the class that f most probably gives to x + N(0, sigma^2 I). If that class has a
probability of at least p > 1/2, then g does not change inside the open l2 ball of radius sigma * Phi^-1(p) around x.
The first n0 draws choose a class; n fresh draws bound its probability from below with confidence 1 - alpha. n is fixed
beforehand and nothing is stopped early, so the confidence is the one that was asked for.

The noise of draw j of image i depends on (seed, stream, i, j) alone: not on the batch, the order, the worker or the
model. So two models certified with one seed face the same noise, and a run that is resumed gives the same claims.
Selection and estimation use different streams: estimating on the draws that chose the class would void the confidence.
"""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from scipy.special import ndtri  # not scipy.stats: it takes a second to import
from torch import Tensor

from lipforge import rng
from lipforge.attacks.queries import forward
from lipforge.batching import ImageData, LabelledSource
from lipforge.errors import InputError, ModelError
from lipforge.results import CertifiedImage, CertifyCost, CertifyResult, curve_point
from lipforge.runs import Experiment, RunDir, Shard, change_of, digest_of, slug
from lipforge.statistics import SAFETY, check_alpha, lower_bound
from lipforge.types import Classifier

BATCH_SIZE = 256
SHARD_DRAWS = 20_000  # draws that make a shard: what an interruption can lose. With n = 100,000 a shard is one image
MOST_DRAWS = 2**32  # draws are numbered in the low word of a sample id, images in the high word
SELECTION, ESTIMATION = "smoothing-selection", "smoothing-estimation"


@dataclass(frozen=True)
class Smoothing:
    """How to smooth and how sure to be; the defaults are those of Cohen et al. on CIFAR-10. `only_correct` estimates
    nothing for images whose selected class is wrong: they abstain. That cannot change certified accuracy, which counts
    correct answers only."""

    sigma: float = 0.25
    n0: int = 100
    n: int = 100_000
    alpha: float = 0.001
    seed: int = 0
    only_correct: bool = False

    def __post_init__(self) -> None:
        if not (math.isfinite(self.sigma) and self.sigma > 0):
            raise InputError(f"sigma must be a number above 0, got {self.sigma}; Cohen et al. use 0.12, 0.25, 0.5, 1")
        for name in ("n0", "n"):
            if not 1 <= getattr(self, name) < MOST_DRAWS:
                raise InputError(f"{name} must lie in [1, 2^32), got {getattr(self, name)}")
        check_alpha(self.alpha)

    @property
    def largest_radius(self) -> float:
        """What is claimed where every draw falls into one class: n draws cannot certify more."""
        return radius_of(lower_bound(self.n, self.n, self.alpha), self.sigma)

    def noisy(self, images: Tensor, ids: Tensor, draws: Tensor, stream: str) -> Tensor:
        """Each image (M, C, H, W) with the noise of its draw; `ids` and `draws` are (M,). Not clipped to [0, 1]."""
        numbers = rng.normal(self.seed, (ids << 32) | draws, stream=stream, shape=images.shape[1:], dtype=images.dtype)
        return images + self.sigma * numbers


def certify(
    classifier: Classifier,
    data: LabelledSource,
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
    show_progress: bool | None = None,
) -> CertifyResult:
    """A claim for every `skip`-th image of `data` (at most `limit`), and certified accuracy over radii.

    Each claim holds with probability 1 - alpha. Classifiers that are certified with one seed face the same noise.
    `only_correct` saves the estimation of images whose selected class is wrong, without a change of the curve.

    With `run` every shard is kept: the same call again resumes, other processes may help, and the ranks of torchrun
    share the shards. `identity` adds what a resumed call must agree on; a classifier that is no module needs it.
    """
    smoothing = Smoothing(sigma, n0, n, alpha, seed, only_correct)
    chosen = default_radii(sigma) if radii is None else tuple(radii)
    for radius in chosen:
        if not (math.isfinite(radius) and radius >= 0):
            raise InputError(f"radii must be finite and not negative, got {radius}")
    if batch_size < 1:
        raise InputError(f"batch_size must be at least 1, got {batch_size}")
    experiment = Experiment.open(data, classifier, run=run, identity=identity, show_progress=show_progress)
    positions = positions_of(experiment.data, skip, limit)
    name, size = task_name(label, smoothing), max(1, SHARD_DRAWS // (n0 + n))
    config = {**asdict(smoothing), "skip": skip}
    task = experiment.task(name, {"model": classifier}, config, positions=positions, shard_size=size)

    def compute(shard: Shard) -> dict[str, Any]:
        return _certify_shard(classifier, shard, smoothing, batch_size)

    shards = experiment.work(task, compute, positions=positions, title=f"certifying {label}")
    images = tuple(CertifiedImage(**row) for shard in shards for row in shard["images"])
    result = CertifyResult(
        label=label,
        model=model_name,
        data=experiment.data.name,
        **asdict(smoothing),
        count=len(images),
        abstained=sum(image.prediction is None for image in images),
        forwards=sum(shard["forwards"] for shard in shards),
        seconds=sum(shard["seconds"] for shard in shards),
        curve=tuple(curve_point(images, radius) for radius in chosen),
        images=images,
        model_digest=experiment.model_digest(classifier),
        # Which images of the data, too: only certificates of the same images can be compared.
        data_digest=digest_of({"data": experiment.data_digest, "skip": skip, "images": len(images)}),
        change=change_of(classifier),
    )
    return experiment.finish(name, result)


def task_name(label: str, smoothing: Smoothing) -> str:
    """The name of a certification's shards and of its result in a run directory.

    >>> task_name("forged", Smoothing(sigma=0.5, n=1000))
    'certify__forged__sigma-0.5__n-1000'
    """
    seed = f"__seed-{smoothing.seed}" if smoothing.seed else ""
    correct = "__only-correct" if smoothing.only_correct else ""
    return f"certify__{slug(label)}__sigma-{smoothing.sigma:g}__n-{smoothing.n}{correct}{seed}"


@torch.no_grad()
def certify_cost(
    classifier: Classifier,
    data: LabelledSource,
    *,
    sigma: float = 0.25,
    n0: int = 100,
    n: int = 100_000,
    skip: int = 1,
    limit: int | None = None,
    batch_size: int = BATCH_SIZE,
) -> CertifyCost:
    """The cost of `certify` with the same arguments, from one timed batch of noise and logits after one to warm up."""
    smoothing, experiment = Smoothing(sigma, n0, n), Experiment.open(data, classifier)
    positions = positions_of(experiment.data, skip, limit)
    image, size = experiment.read(positions[:1]).x, min(batch_size, n)
    ids = torch.zeros(size, dtype=torch.int64, device=image.device)
    for _ in range(2):
        started = time.perf_counter()
        noisy = smoothing.noisy(image.expand(size, -1, -1, -1), ids, torch.arange(size, device=image.device), SELECTION)
        sure_logits(classifier, noisy).argmax(dim=1).sum().item()  # .item() waits for the device
        seconds = time.perf_counter() - started
    count, per_image = len(positions), seconds / size * (n0 + n)
    return CertifyCost(count, count * (n0 + n), per_image * count, per_image, 2 * size, change=change_of(classifier))


def radius_of(probability: float, sigma: float) -> float:
    """sigma * Phi^-1(probability), cut off after six decimals so that it is never above it; 0 up to one half.

    >>> radius_of(0.99, sigma=0.25)
    0.581586
    """
    return int(sigma * float(ndtri(probability)) * (1 - SAFETY) * 1e6) / 1e6 if probability > 0.5 else 0.0


def default_radii(sigma: float) -> tuple[float, ...]:
    """Sigma times 0, 0.5, ... 3.5: sigma 0.25 gives 0, 0.125, ... 0.875; n = 100,000 cannot certify beyond 3.81 sigma.

    >>> default_radii(0.5)
    (0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75)
    """
    return tuple(sigma * step / 2 for step in range(8))


def positions_of(data: ImageData, skip: int, limit: int | None) -> range:
    if skip < 1 or (limit is not None and limit < 1):
        raise InputError(f"skip and limit must be at least 1, got skip={skip}, limit={limit}")
    if len(data) == 0:
        raise InputError("data must not be empty: it holds no image at all")
    return range(0, len(data), skip)[:limit]


def _certify_shard(classifier: Classifier, shard: Shard, smoothing: Smoothing, batch_size: int) -> dict[str, Any]:
    """The claims for the images of a shard, ready for JSON, with the passes and seconds they took."""
    started, labels = time.perf_counter(), shard.y
    counts = _count_classes(classifier, shard, smoothing, SELECTION, smoothing.n0, batch_size)
    if not 0 <= int(labels.min()) <= int(labels.max()) < counts.shape[1]:
        raise InputError(f"labels must lie in [0, {counts.shape[1]}), the model's classes, got {labels.tolist()}")
    selected = counts.argmax(dim=1)
    kept = (selected == labels) | (not smoothing.only_correct)
    hits = torch.zeros_like(selected)
    if kept.any():
        counts = _count_classes(classifier, shard.at(kept), smoothing, ESTIMATION, smoothing.n, batch_size)
        hits[kept] = counts.gather(1, selected[kept, None]).squeeze(1)
    columns = (column.tolist() for column in (shard.ids, labels, selected, hits, kept))
    return {
        "images": [asdict(_claim(smoothing, *row)) for row in zip(*columns, strict=True)],
        "forwards": len(labels) * smoothing.n0 + int(kept.sum()) * smoothing.n,
        "seconds": time.perf_counter() - started,
    }


def _claim(smoothing: Smoothing, index: int, label: int, selected: int, hits: int, kept: bool) -> CertifiedImage:
    draws = smoothing.n if kept else 0
    p_lower = lower_bound(hits, draws, smoothing.alpha) if kept else 0.0
    # At one half or below another class may be as probable: nothing can be claimed.
    prediction, radius = selected if p_lower > 0.5 else None, radius_of(p_lower, smoothing.sigma)
    return CertifiedImage(index, label, prediction, radius, p_lower, selected, hits, draws)


@torch.no_grad()
def _count_classes(
    classifier: Classifier, shard: Shard, smoothing: Smoothing, stream: str, draws: int, batch_size: int
) -> Tensor:
    """Counts (N, K): how many of `draws` noisy copies of each image fall into each class, in full batches of both."""
    counts: Tensor | None = None
    for part in torch.split(torch.arange(len(shard.x) * draws, device=shard.x.device), batch_size):
        at = part // draws
        logits = sure_logits(classifier, smoothing.noisy(shard.x[at], shard.ids[at], part % draws, stream))
        if counts is None:
            counts = torch.zeros(len(shard.x), logits.shape[1], dtype=torch.int64, device=shard.x.device)
        counts.index_put_((at, logits.argmax(dim=1)), torch.ones_like(at), accumulate=True)
    assert counts is not None
    return counts


def sure_logits(classifier: Classifier, images: Tensor) -> Tensor:
    """The logits (N, K), or an error: a NaN would be counted as some class."""
    logits = forward(classifier, images)
    if logits.isnan().any():
        raise ModelError(
            "the model returned NaN logits for a noisy image; noise leaves [0, 1], so its first layer must bear that"
        )
    return logits
