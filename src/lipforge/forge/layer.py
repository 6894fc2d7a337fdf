"""The forged function as a module (Algorithm 1), and the maximum that it tracks."""

from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real
from typing import Any, Literal, Protocol, get_args

import torch
import torch.distributed as dist
from torch import Tensor, nn

from lipforge.errors import InputError
from lipforge.forge.masks import Mask, Step, Threshold

Mode = Literal["plain", "track", "forged", "straight_through", "smooth_backward"]


@dataclass(frozen=True)
class Calibration:
    """Where a bound came from."""

    images_seen: int = 0
    data: str = ""
    statistic: str = "maximum"


class Forge(nn.Module):
    """Suppresses activations of magnitude up to threshold = ratio * bound (c_th = c^r b, eq. 15).

    `plain` passes x through; `track` does too, and remembers the largest |x|; `forged` applies the mask;
    `straight_through` has the same output bit for bit, but its backward pass is the identity (BPDA);
    `smooth_backward` too, with the slope of a smooth mask (`smooth_slope` of `width`) as its backward pass.
    With ratio 0 or bound 0, the defaults, every mode is the identity.

    >>> forge = Forge(Step(), ratio=0.5)
    >>> forge.mode = "track"; _ = forge(torch.tensor([[-4.0, 1.0]])); forge.mode = "forged"
    >>> forge.threshold, forge(torch.tensor([[1.5, 3.0]]))
    (2.0, tensor([[0., 3.]]))
    """

    bound: Tensor
    centre: Tensor | None
    _thresholds: Tensor | None

    def __init__(self, mask: Mask | None = None, ratio: float = 0.0, channels: int = 0, channel_dim: int = -1) -> None:
        super().__init__()
        if mask is not None and not hasattr(mask, "statistic"):
            raise InputError(f"mask must be a mask such as Step() or Piecewise(d=0.5), got {mask!r}")
        self.mask: Mask = mask if mask is not None else Step()
        self.channels = channels
        self.channel_dim = channel_dim
        self.calibration = Calibration()
        self.tracker: Tracker | None = None
        self._mode: Mode = "forged"
        self.width = 0.5
        self._ratio = check_ratio(ratio)
        # Not persistent: the user's checkpoint keys must not change. The recipe is the place that keeps bounds.
        self.register_buffer("bound", torch.zeros(()), persistent=False)
        self.register_buffer("centre", None, persistent=False)
        self.register_buffer("_thresholds", None, persistent=False)
        self._threshold = 0.0
        self._active = False

    @property
    def mode(self) -> Mode:
        return self._mode

    @mode.setter
    def mode(self, mode: Mode) -> None:
        if mode not in get_args(Mode):
            raise InputError(f"mode must be one of {', '.join(get_args(Mode))}, got {mode!r}")
        if self._mode == "track" and mode != "track" and self.tracker is not None:
            self.set_bound(self.tracker.bound(), self.tracker.centre())
            self.tracker = None
        if mode == "track" and self.tracker is None:
            if self.mask.statistic != "maximum":
                raise InputError(f"mask '{self.mask.name}' needs calibrate_, which tracks its {self.mask.statistic}")
            self.tracker = Maximum(self.bound, self.channel_dim if self.bound.ndim else None)
        self._mode = mode

    @property
    def ratio(self) -> float:
        """The share of the bound below which activations are forged, c^r in the paper."""
        return self._ratio

    @ratio.setter
    def ratio(self, ratio: float) -> None:
        self._ratio = check_ratio(ratio)
        self._refresh()

    @property
    def threshold(self) -> Threshold:
        """c_th: a number, or a tensor of one per channel."""
        return self._threshold if self._thresholds is None else self._thresholds

    def set_bound(self, bound: Tensor, centre: Tensor | None = None) -> None:
        """Set a calibrated bound: a scalar, or one per channel (with a centre per channel for MeanCentred)."""
        if not (torch.isfinite(bound).all() and (bound >= 0).all()):
            raise InputError(f"bound must be finite and not negative, got {bound}")
        self.bound = bound.detach().clone()
        self.centre = None if centre is None else centre.detach().clone()
        self._refresh()

    def forward(self, x: Tensor) -> Tensor:
        if self._mode == "track":
            assert self.tracker is not None
            if x.numel() > 0:
                self.tracker.calls += 1
                self.tracker.update(x.detach())
            return x
        if self._mode == "plain" or not self._active:
            return x
        if self._mode == "forged":
            return self._forged(x)
        slope = self._slope if self._mode == "smooth_backward" else None
        through: Tensor = _OtherBackward.apply(x, self._forged, slope)  # type: ignore[no-untyped-call]  # untyped in torch
        return through

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "Forge":
        """Follow the model to another device, but stay in float32: `model.half()` must not move a threshold."""
        super()._apply(lambda tensor: tensor.to(fn(tensor.new_empty(0)).device), recurse)  # type: ignore[no-untyped-call]
        return self

    def extra_repr(self) -> str:
        bound = f"{self.bound.item():.4g}" if self.bound.ndim == 0 else f"{len(self.bound)} channels"
        return f"mask={self.mask}, ratio={self.ratio:g}, bound={bound}, mode={self.mode}"

    def _forged(self, x: Tensor) -> Tensor:
        if self._thresholds is None:
            return self.mask(x, self._threshold)
        centre = None if self.centre is None else self._per_channel(self.centre, x)
        return self.mask(x, self._per_channel(self._thresholds, x), centre)

    def _slope(self, x: Tensor) -> Tensor:
        if self._thresholds is None:
            return smooth_slope(x.abs() / self._threshold, self.width)
        thresholds = self._per_channel(self._thresholds, x)
        distance = x.abs() if self.centre is None else (x - self._per_channel(self.centre, x)).abs()
        # A dead channel has the threshold 0, so nothing of it is forged: its slope is 1, without dividing 0 by 0.
        slope = smooth_slope(distance / torch.where(thresholds > 0, thresholds, 1.0), self.width)
        return torch.where(thresholds > 0, slope, 1.0).to(x.dtype)

    def _per_channel(self, values: Tensor, x: Tensor) -> Tensor:
        shape = [1] * x.ndim
        shape[self.channel_dim] = -1
        return values.view(shape)

    def _refresh(self) -> None:
        """Read the bound off the device once, so that no forward pass has to."""
        thresholds = self._ratio * self.bound
        self._active = bool((thresholds > 0).any())
        per_channel = thresholds.ndim > 0
        self._thresholds = thresholds if per_channel else None
        self._threshold = 0.0 if per_channel else float(self._ratio * self.bound.item())


class _OtherBackward(torch.autograd.Function):
    """Returns forged(x); multiplies the gradient by slope(x), or hands it to x unchanged without a slope.

    An autograd function rather than x + (forged(x) - x).detach(): that sum is not bit-identical to forged(x).
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, forged: Callable[[Tensor], Tensor], slope: Callable[[Tensor], Tensor] | None) -> Tensor:
        return forged(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, _, ctx.slope = inputs
        if ctx.slope is not None:
            ctx.save_for_backward(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        if ctx.slope is None:
            return gradients[0], None, None
        (x,) = ctx.saved_tensors
        return gradients[0] * ctx.slope(x), None, None


def smooth_slope(relative: Tensor, width: float) -> Tensor:
    """The derivative of r * sigmoid((r - 1) / width), a smooth mask, at r = |x| / threshold.

    Its sigmoid is 1/2 at the threshold; the bump there replaces the jump that the step's own derivative leaves out.

    >>> smooth_slope(torch.tensor([0.0, 1.0, 9.0]), width=0.5)
    tensor([0.1192, 1.0000, 1.0000])
    """
    share = torch.sigmoid((relative - 1) / width)
    return share + relative * share * (1 - share) / width


def check_ratio(ratio: float) -> float:
    """The ratio as a float, or an error unless it lies in [0, 1]."""
    if isinstance(ratio, bool) or not isinstance(ratio, Real) or not 0 <= ratio <= 1:
        raise InputError(f"ratio must be a number in [0, 1], got {ratio!r}; the paper tries 2^-8, 2^-7, 2^-6")
    return float(ratio)


class Tracker(Protocol):
    """What a calibration pass remembers of the activations at one site, in constant memory.

    Fed with `update`, merged over ranks with `reduce_`, read with `bound` and `centre`. The order and the size of the
    batches do not matter: maxima and counts are exact, sums are kept in float64.
    """

    calls: int

    def update(self, x: Tensor) -> None: ...

    def reduce_(self) -> None: ...

    def peak(self) -> Tensor:
        """The largest |x| so far as a scalar on the device; not finite as soon as any x was not."""
        ...

    def bound(self) -> Tensor: ...

    def centre(self) -> Tensor | None: ...


class Maximum:
    """The largest |x|, over the layer or per channel (Algorithm 1, line 3)."""

    def __init__(self, start: Tensor, channel_dim: int | None = None) -> None:
        self.calls = 0
        self.channel_dim = channel_dim
        self._peak = start.clone()

    def update(self, x: Tensor) -> None:
        self._peak = torch.maximum(self._peak, largest_magnitude(x, self.channel_dim).to(self._peak.dtype))

    def reduce_(self) -> None:
        dist.all_reduce(self._peak, dist.ReduceOp.MAX)

    def peak(self) -> Tensor:
        return self._peak.amax()

    def bound(self) -> Tensor:
        return self._peak

    def centre(self) -> None:
        return None


def largest_magnitude(x: Tensor, channel_dim: int | None = None) -> Tensor:
    """The largest |x|: a scalar, or one per channel."""
    if channel_dim is None:
        low, high = torch.aminmax(_dense(x))  # one read of the tensor, no copy
    else:
        x = x.unsqueeze(0)
        dims = other_dims(x, channel_dim)
        low, high = x.amin(dims), x.amax(dims)
    return torch.maximum(high, -low)


def _dense(x: Tensor) -> Tensor:
    """The same elements as a contiguous view where there is one: aminmax is 10x slower on channels_last."""
    if x.ndim == 4 and x.is_contiguous(memory_format=torch.channels_last):
        return x.permute(0, 2, 3, 1)
    return x


def other_dims(x: Tensor, channel_dim: int) -> list[int]:
    """Every dimension but the channels'; `x` needs a second one, for torch takes an empty list to mean all."""
    return [dim for dim in range(x.ndim) if dim != channel_dim % x.ndim]
