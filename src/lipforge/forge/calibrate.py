"""Bounds from one pass over images: no gradients, constant memory, nothing else in the model changed.

`forge_` is the one-liner: find the sites, insert forged functions, calibrate them.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

import torch
import torch.distributed as dist
from torch import Tensor, nn

from lipforge.batching import BATCH_SIZE, ImageSource, batches, check_eval, device_of, image_count, peek
from lipforge.errors import CalibrationError, InputError, ModelError, SiteError
from lipforge.forge.insert import forges, insert_, remove_, require_forges, set_ratio_
from lipforge.forge.layer import Calibration, Forge, Maximum, Tracker, largest_magnitude, other_dims
from lipforge.forge.masks import Mask
from lipforge.forge.recipe import Recipe, describe_source, recipe_of
from lipforge.forge.sites import DEFAULT_RULES, find_sites, unwrap
from lipforge.progress import progress
from lipforge.ranks import joined


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
    """Forge `model` in one pass over `images`, and return the recipe. The mask is Step unless another is given.

    On any error the model is as it was before.
    """
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
        remove_(model)
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

    `per_channel` keeps one bound per channel; `quantile` takes that quantile of |x| instead of the maximum, at most
    0.1 % above the exact one. MeanCentred always gets the mean and standard deviation of each channel. In a process
    group every rank passes its own share of the images and all end with the same bounds. On any error the model is
    as it was. `data` describes the images in the recipe.
    """
    found = require_forges(model)
    check_eval(unwrap(model))
    _check_options(per_channel, quantile, found)
    inner, device = unwrap(model), device_of(model)
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
            _check_finite(model, trackers, suspect)
            peaks = torch.stack([tracker.peak().to(device) for tracker in trackers.values()])
            suspect = (peaks.isfinite().all(), inputs, batch.first)
            seen += len(inputs)
            step(len(inputs))
        _check_finite(model, trackers, suspect)
    return seen


def _check_finite(model: nn.Module, trackers: dict[str, Tracker], suspect: tuple[Tensor, Tensor, int] | None) -> None:
    """Name the first image with a non-finite activation, and the first site in call order that sees it there."""
    if suspect is None or bool(suspect[0]):
        return
    _, images, first = suspect
    hit: list[str] = []

    def watch(name: str) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
        return lambda forge, args: None if args[0].isfinite().all() else hit.append(name)

    found = forges(model)
    with ExitStack() as hooks:
        for name in trackers:
            hooks.enter_context(found[name].register_forward_pre_hook(watch(name)))
        for index in range(len(images)):
            model(images[index : index + 1])
            if hit:
                raise CalibrationError(
                    f"site '{hit[0]}' saw a non-finite activation in image {first + index}; "
                    "look at that image and at the layers before the site"
                )
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


class Quantile:
    """A quantile of |x| over all elements, from a histogram whose bins are 2^-10 wide in relative terms.

    The result q' satisfies q <= q' <= q * (1 + 2^-10) for the exact quantile q, if q lies in [2^-32, 2^32]; it is
    never above the largest |x|. The bins are the leading bits of the float32 pattern, so counts do not depend on order.
    """

    MANTISSA_BITS = 10
    SHIFT = 23 - MANTISSA_BITS
    LOWEST = (127 - 32) << MANTISSA_BITS
    BINS = 64 << MANTISSA_BITS

    def __init__(self, quantile: float, device: torch.device) -> None:
        self.calls = 0
        self.quantile = quantile
        self._peak = torch.zeros((), device=device)
        self._counts = torch.zeros(self.BINS, dtype=torch.int64, device=device)

    def update(self, x: Tensor) -> None:
        self._peak = torch.maximum(self._peak, largest_magnitude(x).to(self._peak.dtype))
        code = x.abs().float().view(torch.int32) >> self.SHIFT
        code = code.sub_(self.LOWEST).clamp_(0, self.BINS - 1)
        self._counts += torch.bincount(code.flatten(), minlength=self.BINS)

    def reduce_(self) -> None:
        dist.all_reduce(self._peak, dist.ReduceOp.MAX)
        dist.all_reduce(self._counts, dist.ReduceOp.SUM)

    def peak(self) -> Tensor:
        return self._peak

    def bound(self) -> Tensor:
        cumulative = self._counts.cumsum(0)
        wanted = torch.ceil(self.quantile * cumulative[-1].double()).long()
        code = torch.searchsorted(cumulative, wanted.clamp(min=1))
        upper_edge = ((code + 1 + self.LOWEST) << self.SHIFT).to(torch.int32).view(torch.float32)
        last = code >= self.BINS - 1
        return torch.where(last, self._peak, torch.minimum(upper_edge, self._peak))

    def centre(self) -> None:
        return None


class Moments:
    """Mean and standard deviation (of the population) per channel, for MeanCentred."""

    def __init__(self, channels: int, channel_dim: int, device: torch.device) -> None:
        self.calls = 0
        self.channel_dim = channel_dim
        self._count = torch.zeros((), dtype=torch.float64, device=device)
        self._sum = torch.zeros(channels, dtype=torch.float64, device=device)
        self._squares = torch.zeros(channels, dtype=torch.float64, device=device)

    def update(self, x: Tensor) -> None:
        x = x.unsqueeze(0)
        dims = other_dims(x, self.channel_dim)
        self._count += x.numel() // len(self._sum)
        self._sum += x.sum(dims, dtype=torch.float64)
        self._squares += x.double().square_().sum(dims)

    def reduce_(self) -> None:
        for total in (self._count, self._sum, self._squares):
            dist.all_reduce(total, dist.ReduceOp.SUM)

    def peak(self) -> Tensor:
        return self._squares.amax()

    def bound(self) -> Tensor:
        mean = self._sum / self._count
        return (self._squares / self._count - mean.square()).clamp(min=0).sqrt().float()

    def centre(self) -> Tensor:
        return (self._sum / self._count).float()
