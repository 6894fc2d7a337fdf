"""Bounds from one pass over images: no gradients, constant memory, nothing else in the model changed."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor, nn

from lipforge.batching import BATCH_SIZE, ImageSource, batches, check_eval, device_of, image_count
from lipforge.errors import CalibrationError, InputError, ModelError, SiteError
from lipforge.forge.insert import forges, require_forges
from lipforge.forge.layer import Calibration, Forge
from lipforge.forge.recipe import Recipe, describe_source, recipe_of
from lipforge.forge.statistics import Maximum, Moments, Quantile, Tracker
from lipforge.forge.unwrap import unwrap
from lipforge.progress import progress
from lipforge.ranks import joined


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

    `per_channel` keeps one bound per channel; `quantile` takes that quantile of |x| instead of the maximum, at most
    0.1 % above the exact one. MeanCentred always gets the mean and standard deviation of each channel. In a process
    group every rank passes its own share of the images and all end with the same bounds. On any error the model is
    as it was. `data` describes the images in the recipe.
    """
    found = require_forges(model)
    check_eval(unwrap(model))
    _check_options(per_channel, quantile, found)
    inner, device = unwrap(model), device_of(model)
    with _unchanged_on_error(found):
        trackers = {name: _tracker(name, forge, per_channel, quantile) for name, forge in found.items()}
        with _tracking(found, trackers):
            seen = _together(lambda: _run(inner, images, batch_size, trackers, show_progress), device)
            _finish(trackers, device)
        origin = Calibration(seen, data or describe_source(images), _statistic_name(found, per_channel, quantile))
        for name, forge in found.items():
            forge.set_bound(trackers[name].bound(), trackers[name].centre())
            forge.calibration = origin
        return recipe_of(model)


def _run(
    model: nn.Module, images: ImageSource, batch_size: int, trackers: dict[str, Tracker], show: bool | None
) -> int:
    """Feed all images; how many there were. A non-finite activation is reported one batch late, without a stall."""
    device, seen = device_of(model), 0
    suspect: tuple[Tensor, Tensor, int] | None = None
    with torch.no_grad(), progress("calibrating", image_count(images), show=show) as step:
        for batch in batches(images, batch_size):
            inputs = batch.images.to(device, non_blocking=True)
            _forward(model, inputs, batch.first)
            _raise_if_broken(model, trackers, suspect)
            peaks = torch.stack([tracker.peak().to(device) for tracker in trackers.values()])
            suspect = (peaks.isfinite().all(), inputs, batch.first)
            seen += len(inputs)
            step(len(inputs))
        _raise_if_broken(model, trackers, suspect)
    return seen


def _raise_if_broken(
    model: nn.Module, trackers: dict[str, Tracker], suspect: tuple[Tensor, Tensor, int] | None
) -> None:
    if suspect is None or bool(suspect[0]):
        return
    _, images, first = suspect
    name, image = _first_broken(model, list(trackers), images)
    raise CalibrationError(
        f"site '{name}' saw a non-finite activation in image {first + image}; "
        "look at that image and at the layers before the site"
    )


def _first_broken(model: nn.Module, names: list[str], images: Tensor) -> tuple[str, int]:
    """The first site in call order, in the first image, that sees a non-finite activation: one image at a time."""
    broken: list[str] = []

    def watch(name: str) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
        return lambda forge, args: None if args[0].isfinite().all() else broken.append(name)

    found = forges(model)
    handles = [found[name].register_forward_pre_hook(watch(name)) for name in names]
    try:
        for index in range(len(images)):
            model(images[index : index + 1])
            if broken:
                return broken[0], index
    finally:
        for handle in handles:
            handle.remove()
    raise CalibrationError("a batch has a non-finite activation that no single image of it has; use batch_size=1")


def _finish(trackers: dict[str, Tracker], device: torch.device) -> None:
    """Merge the ranks, and see that every site was reached by some rank: all of them come to the same answer."""
    calls = torch.tensor([tracker.calls for tracker in trackers.values()], device=device)
    if joined():
        dist.all_reduce(calls)
        for tracker in trackers.values():
            tracker.reduce_()
    missed = [name for name, count in zip(trackers, calls.tolist(), strict=True) if count == 0]
    if missed:
        raise CalibrationError(
            f"calibration never reached site '{missed[0]}'"
            + (f" and {len(missed) - 1} more" if len(missed) > 1 else "")
            + ": the model does not call that layer (or reads its weight without calling it); "
            "leave it out with exclude=, or find the sites again"
        )


@contextmanager
def _tracking(found: dict[str, Forge], trackers: dict[str, Tracker]) -> Iterator[None]:
    """Every forged function in track mode, feeding its tracker; then in the mode it had."""
    modes = {name: forge.mode for name, forge in found.items()}
    try:
        for name, forge in found.items():
            forge.tracker = trackers[name]
            forge.mode = "track"
        yield
    finally:
        for name, forge in found.items():
            forge.tracker = None
            forge.mode = modes[name]


@contextmanager
def _unchanged_on_error(found: dict[str, Forge]) -> Iterator[None]:
    """On any error put back what calibration changes."""
    before = {name: (forge.bound, forge.centre, forge.calibration) for name, forge in found.items()}
    try:
        yield
    except BaseException:
        for name, (bound, centre, calibration) in before.items():
            found[name].set_bound(bound, centre)
            found[name].calibration = calibration
        raise


def _tracker(name: str, forge: Forge, per_channel: bool, quantile: float | None) -> Tracker:
    device, moments = forge.bound.device, forge.mask.statistic == "moments"
    if quantile is not None:
        return Quantile(quantile, device)
    if not (per_channel or moments):
        return Maximum(torch.zeros((), device=device))
    if forge.channels == 0:
        raise SiteError(
            f"site '{name}' is called with different numbers of channels, so it has no figures per channel; "
            f"leave it out with exclude=['{name}']"
        )
    if moments:
        return Moments(forge.channels, forge.channel_dim, device)
    return Maximum(torch.zeros(forge.channels, device=device), forge.channel_dim)


def _check_options(per_channel: bool, quantile: float | None, found: dict[str, Forge]) -> None:
    if quantile is not None and not 0 < quantile <= 1:
        raise InputError(f"quantile must lie in (0, 1], got {quantile}")
    if quantile is not None and per_channel:
        raise InputError("quantile and per_channel cannot be combined: a histogram per channel is not constant memory")
    moments = [forge.mask.name for forge in found.values() if forge.mask.statistic == "moments"]
    if moments and quantile is not None:
        raise InputError(f"quantile does not apply to the mask '{moments[0]}', which takes means and deviations")


def _forward(model: nn.Module, images: Tensor, first: int) -> None:
    """Run the model; where it fails, say on what, and whether the channels look wrong."""
    try:
        model(images)
    except RuntimeError as error:
        stem = next((module for module in model.modules() if isinstance(module, nn.Conv2d)), None)
        hint = ""
        if stem is not None and images.shape[1] != stem.in_channels:
            hint = f"; its first conv takes {stem.in_channels} channels: are the images (N, H, W, C)?"
        shape = tuple(images.shape[1:])
        raise ModelError(
            f"the model fails on images of the shape {shape} (from image {first}){hint}: {error}"
        ) from error


def _statistic_name(found: dict[str, Forge], per_channel: bool, quantile: float | None) -> str:
    if next(iter(found.values())).mask.statistic == "moments":
        return "mean and deviation per channel"
    return f"quantile {quantile}" if quantile is not None else "maximum per channel" if per_channel else "maximum"


def _together(work: Callable[[], int], device: torch.device) -> int:
    """The sum of `work()` over the ranks; if it fails on one, all fail, instead of waiting for it forever."""
    if not joined():
        return work()
    failure: Exception | None = None
    result = 0
    try:
        result = work()
    except Exception as error:
        failure = error
    totals = torch.tensor([result, int(failure is not None)], dtype=torch.int64, device=device)
    dist.all_reduce(totals)
    if failure is not None:
        raise failure
    if totals[1] > 0:
        raise CalibrationError("calibration failed on another rank; its message says why")
    return int(totals[0])
