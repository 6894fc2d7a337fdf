"""Bounds from one pass over images: no gradients, constant memory, nothing else in the model changed."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn

from lipforge.batching import BATCH_SIZE, ImageSource, batches, check_eval, device_of, image_count, peek
from lipforge.errors import CalibrationError, InputError, ModelError, SiteError
from lipforge.forge.insert import forges, insert_, refuse_affine, remove_forges_, require_forges, set_ratio_
from lipforge.forge.layer import Calibration, Forge
from lipforge.forge.masks import Mask
from lipforge.forge.recipe import Recipe, describe_source, recipe_of
from lipforge.forge.sites import DEFAULT_RULES, find_sites, unwrap
from lipforge.forge.trackers import Maximum, Moments, Quantile, Tracker
from lipforge.logs import logger
from lipforge.progress import progress
from lipforge.ranks import joined
from lipforge.recording import eager

Trackers = dict[str, Tracker]


def forge_(
    model: nn.Module,
    images: ImageSource,
    *,
    mask: Mask | None = None,
    ratio: float | Mapping[str, float] = 2**-7,
    rules: Sequence[str] = DEFAULT_RULES,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    per_channel: bool = False,
    quantile: float | None = None,
    batch_size: int = BATCH_SIZE,
    data: str | None = None,
    show_progress: bool | None = None,
) -> Recipe:
    """Forge `model` (with Step by default) in one pass over `images`; the recipe. On an error nothing has changed."""
    found = forges(model)
    if found:
        raise SiteError(f"the model is forged already ({len(found)} sites); call remove_ first, or calibrate_ again")
    source = describe_source(images) if data is None else data
    sample, images = peek(images, batch_size)
    sites = find_sites(model, sample, rules=rules, include=include, exclude=exclude)
    try:
        insert_(model, sites, mask=mask)
        set_ratio_(model, ratio)
        return calibrate_(
            model,
            images,
            per_channel=per_channel,
            quantile=quantile,
            batch_size=batch_size,
            data=source,
            show_progress=show_progress,
        )
    except BaseException:
        remove_forges_(model)
        raise


def calibrate_(
    model: nn.Module,
    images: ImageSource,
    *,
    per_channel: bool = False,
    quantile: float | None = None,
    batch_size: int = BATCH_SIZE,
    data: str | None = None,
    show_progress: bool | None = None,
) -> Recipe:
    """Set the bound of every forged function to the largest |x| that `images` cause there (eq. 15), in one pass.

    `per_channel` keeps one bound per channel; `quantile` takes that quantile of |x|, not the maximum, at most 0.1 %
    above the exact one. MeanCentred gets each channel's mean and standard deviation. In a process group every rank
    passes its share of the images and all get the same bounds. `data` names the images. An error changes nothing.
    """
    found, inner, device = require_forges(model), unwrap(model), device_of(model)
    check_eval(inner)
    refuse_affine(model, "calibrate_")
    trackers = {name: _tracker(name, forge, per_channel, quantile) for name, forge in found.items()}
    with _tracking(found, trackers):
        seen = _together(lambda: _run(inner, images, batch_size, trackers, show_progress), device)
        _finish(trackers, device)
        for name, forge in found.items():
            tracker = trackers[name]
            forge.set_bound(tracker.bound(), tracker.centre() if isinstance(tracker, Moments) else None)
            forge.calibration = Calibration(seen, data or describe_source(images), tracker.statistic)
        logger.info("calibrated %d sites on %d images of %s", len(found), seen, data or describe_source(images))
        return recipe_of(model)


def _run(model: nn.Module, images: ImageSource, batch_size: int, trackers: Trackers, show: bool | None) -> int:
    """Feed all images; how many there were. A non-finite activation is reported one batch late, without a stall."""
    device, seen = device_of(model), 0
    suspect: tuple[Tensor, Tensor, int] | None = None
    with torch.no_grad(), eager(), progress("calibrating", image_count(images), show=show) as step:
        for batch in batches(images, batch_size):
            inputs = batch.images.to(device, non_blocking=True)
            _forward(model, inputs, batch.first)
            _check_finite(model, suspect)
            peaks = torch.stack([tracker.peak().to(device) for tracker in trackers.values()])
            suspect = (peaks.isfinite().all(), inputs, batch.first)
            seen += len(inputs)
            step(len(inputs))
        _check_finite(model, suspect)
    return seen


def _check_finite(model: nn.Module, suspect: tuple[Tensor, Tensor, int] | None) -> None:
    """Name the first image with a non-finite activation, and the first site in call order that sees it there."""
    if suspect is None or bool(suspect[0]):
        return
    _, images, first = suspect
    hit: list[str] = []

    def watch(name: str, forge: nn.Module, args: tuple[Tensor, ...]) -> None:
        if not args[0].isfinite().all():
            hit.append(name)

    with ExitStack() as hooks:
        for name, forge in forges(model).items():
            hooks.enter_context(forge.register_forward_pre_hook(partial(watch, name)))
        for index in range(len(images)):
            model(images[index : index + 1])
            if hit:
                raise CalibrationError(
                    f"site '{hit[0]}' saw a non-finite activation in image {first + index}; "
                    "look at that image and at the layers before the site"
                )
    raise CalibrationError("a batch has a non-finite activation that no single image of it has; use batch_size=1")


def _finish(trackers: Trackers, device: torch.device) -> None:
    """Merge the ranks, and see that every site was reached by some rank: all of them come to the same answer."""
    calls = torch.tensor([tracker.calls for tracker in trackers.values()], device=device)
    if joined():
        dist.all_reduce(calls)
        for tracker in trackers.values():
            tracker.reduce_()
    missed = [name for name, count in zip(trackers, calls.tolist(), strict=True) if count == 0]
    if missed:
        more = f" and {len(missed) - 1} more" if len(missed) > 1 else ""
        raise CalibrationError(
            f"calibration never reached site '{missed[0]}'{more}: the model does not call that layer (or reads its "
            "weight without calling it); leave it out with exclude=, or find the sites again"
        )


@contextmanager
def _tracking(found: dict[str, Forge], trackers: Trackers) -> Iterator[None]:
    """Every forged function in track mode, feeding its tracker; then in the mode it had, after an error unchanged."""
    before = {name: (forge.mode, forge.bound, forge.centre, forge.calibration) for name, forge in found.items()}
    try:
        for name, forge in found.items():
            forge.tracker = trackers[name]
            forge.mode = "track"
        yield
    except BaseException:
        for name, (_, bound, centre, calibration) in before.items():
            found[name].set_bound(bound, centre)
            found[name].calibration = calibration
        raise
    finally:
        for name, forge in found.items():
            forge.tracker = None
            forge.mode = before[name][0]


def _tracker(name: str, forge: Forge, per_channel: bool, quantile: float | None) -> Tracker:
    device, moments = forge.bound.device, forge.mask.statistic == "moments"
    if quantile is not None and not 0 < quantile <= 1:
        raise InputError(f"quantile must lie in (0, 1], got {quantile}")
    if quantile is not None and per_channel:
        raise InputError("quantile and per_channel cannot be combined: a histogram per channel is not constant memory")
    if quantile is not None and moments:
        raise InputError(f"quantile does not apply to the mask '{forge.mask.name}', which takes means and deviations")
    if quantile is not None:
        return Quantile(quantile, device)
    if not (per_channel or moments):
        return Maximum(torch.zeros((), device=device))
    if forge.channels == 0:
        raise SiteError(
            f"site '{name}' is called with different numbers of channels, so it has no bound per channel; "
            f"leave it out with exclude=['{name}']"
        )
    if moments:
        return Moments(forge.channels, forge.channel_dim, device)
    return Maximum(torch.zeros(forge.channels, device=device), forge.channel_dim)


def _forward(model: nn.Module, images: Tensor, first: int) -> None:
    try:
        model(images)
    except RuntimeError as error:
        stem = next((module for module in model.modules() if isinstance(module, nn.Conv2d)), None)
        hint, shape = "", tuple(images.shape[1:])
        if stem is not None and shape[0] != stem.in_channels:
            hint = f"; its first conv takes {stem.in_channels} channels: are the images (N, H, W, C)?"
        found = f"the model fails on images of the shape {shape} (from image {first}){hint}"
        raise ModelError(f"{found}: {error}") from error


def _together(work: Callable[[], int], device: torch.device) -> int:
    """The sum of `work()` over the ranks; if it fails on one, all fail, instead of waiting for it forever."""
    if not joined():
        return work()
    totals, failure = torch.zeros(2, dtype=torch.int64, device=device), None
    try:
        totals[0] = work()
    except Exception as error:
        totals[1], failure = 1, error
    dist.all_reduce(totals)
    if failure is not None:
        raise failure
    if totals[1] > 0:
        raise CalibrationError("calibration failed on another rank; its message says why")
    return int(totals[0])
