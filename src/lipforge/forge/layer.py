"""The forged function as a module (Algorithm 1)."""

from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from lipforge.errors import InputError
from lipforge.forge.masks import Mask, Step, Threshold, divisor
from lipforge.forge.trackers import Maximum, Tracker
from lipforge.results.change import Change

Mode = Literal["plain", "track", "forged", "straight_through", "smooth_backward"]


@dataclass(frozen=True)
class Calibration:
    images_seen: int = 0
    data: str = ""
    statistic: str = "maximum"


class Forge(nn.Module):
    """Suppresses activations of magnitude up to threshold = ratio * bound (c_th = c^r b, eq. 15).

    `plain` passes x through; `track` does too, and remembers the largest |x|; `forged` applies the mask;
    `straight_through` has the same output bit for bit, but its backward pass is the identity (BPDA);
    `smooth_backward` too, with the slope of a smooth mask (`smooth_slope` of `width`) as its backward pass.
    With ratio 0 or bound 0, the defaults, every mode is the identity, unless `set_affine` gave it a scale and a shift
    per channel: these follow the mask in every mode but `plain` and `track`.

    >>> forge = Forge(Step(), ratio=0.5)
    >>> forge.mode = "track"; _ = forge(torch.tensor([[-4.0, 1.0]])); forge.mode = "forged"
    >>> forge.threshold, forge(torch.tensor([[1.5, 3.0]]))
    (2.0, tensor([[0., 3.]]))
    """

    bound: Tensor
    centre: Tensor | None
    scale: Tensor | None
    shift: Tensor | None
    _thresholds: Tensor | None

    def __init__(self, mask: Mask | None = None, ratio: float = 0.0, channels: int = 0, channel_dim: int = -1) -> None:
        super().__init__()
        if mask is not None and not hasattr(mask, "statistic"):
            raise InputError(f"mask must be a mask such as Step() or Piecewise(d=0.5), got {mask!r}")
        self.mask: Mask = mask or Step()
        self.channels, self.channel_dim = channels, channel_dim
        self.calibration = Calibration()
        self.tracker: Tracker | None = None
        self._mode: Mode = "forged"
        self.width = 0.5
        self._ratio = check_ratio(ratio)
        # Not persistent: the user's checkpoint keys must not change. The recipe is the place that keeps bounds.
        self.register_buffer("bound", torch.zeros(()), persistent=False)
        self.register_buffer("centre", None, persistent=False)
        self.register_buffer("scale", None, persistent=False)
        self.register_buffer("shift", None, persistent=False)
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
            self.set_bound(self.tracker.bound())
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

    def set_affine(self, scale: Tensor | None, shift: Tensor | None) -> None:
        """Set what follows the mask: x * scale + shift, one of each per channel; None for neither."""
        for name, values in (("scale", scale), ("shift", shift)):
            if values is not None and (values.shape != (self.channels,) or not torch.isfinite(values).all()):
                raise InputError(f"{name} must be {self.channels} finite numbers, one per channel, got {values}")
        if (scale is None) != (shift is None):
            raise InputError("scale and shift go together: give both, or None for both")
        self.scale = None if scale is None else scale.detach().clone().to(self.bound)
        self.shift = None if shift is None else shift.detach().clone().to(self.bound)

    def forward(self, x: Tensor) -> Tensor:
        if self._mode == "track":
            assert self.tracker is not None
            if x.numel() > 0:
                self.tracker.calls += 1
                self.tracker.update(x.detach())
            return x
        if self._mode == "plain":
            return x
        masked = self._masked(x) if self._active else x
        if self.scale is None or self.shift is None:
            return masked
        shape = self._shape(x)
        return masked * self.scale.view(shape).to(x.dtype) + self.shift.view(shape).to(x.dtype)

    def _masked(self, x: Tensor) -> Tensor:
        if self._mode == "forged":
            return self._forged(x)
        slope = self._slope if self._mode == "smooth_backward" else None
        through: Tensor = _OtherBackward.apply(x, self._forged, slope)  # type: ignore[no-untyped-call]  # untyped in torch
        return through

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "Forge":
        """Follow the model to another device, but stay in float32: `model.half()` must not move a threshold."""
        super()._apply(lambda tensor: tensor.to(fn(tensor.new_empty(0)).device), recurse)  # type: ignore[no-untyped-call]
        return self

    def lipforge_change(self, model: nn.Module) -> Change | None:
        """What lipforge changed in the `model` that this is a part of, for those who may not import `forge`."""
        from lipforge.forge.change import change_of

        return change_of(model)

    def extra_repr(self) -> str:
        bound = f"{self.bound.item():.4g}" if self.bound.ndim == 0 else f"{len(self.bound)} channels"
        affine = "" if self.scale is None else ", affine"
        return f"mask={self.mask}, ratio={self.ratio:g}, bound={bound}, mode={self.mode}{affine}"

    def _forged(self, x: Tensor) -> Tensor:
        return self.mask(x, *self._figures(x))

    def _slope(self, x: Tensor) -> Tensor:
        threshold, centre = self._figures(x)
        distance = (x if centre is None else x - centre).abs()
        slope = smooth_slope(distance / divisor(threshold), self.width)
        # A dead channel has the threshold 0, so nothing of it is forged: its slope is 1.
        return torch.where(threshold > 0, slope, 1.0).to(x.dtype) if isinstance(threshold, Tensor) else slope

    def _figures(self, x: Tensor) -> tuple[Threshold, Tensor | None]:
        """Threshold and centre; where they are per channel, in a shape that broadcasts against x."""
        if self._thresholds is None:
            return self._threshold, None
        shape = self._shape(x)
        return self._thresholds.view(shape), None if self.centre is None else self.centre.view(shape)

    def _shape(self, x: Tensor) -> list[int]:
        """In which one value per channel broadcasts against x."""
        shape = [1] * x.ndim
        shape[self.channel_dim] = -1
        return shape

    def _refresh(self) -> None:
        """Read the bound off the device once, so that no forward pass has to."""
        thresholds = self._ratio * self.bound
        self._active = bool((thresholds > 0).any())
        self._thresholds = thresholds if thresholds.ndim else None
        self._threshold = 0.0 if thresholds.ndim else float(self._ratio * self.bound.item())


class _OtherBackward(torch.autograd.Function):
    """forged(x), bit for bit, unlike x + (forged(x) - x).detach(); its gradient is slope(x), or 1 without a slope."""

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
    """The derivative of the smooth mask r * sigmoid((r - 1) / width) at r = |x| / threshold.

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
