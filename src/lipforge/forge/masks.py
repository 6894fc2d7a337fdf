"""The masks of the forged function (eqs. 7 to 10), and the MeanSparse operator to compare them with.

A mask maps an activation x and a threshold c_th to the forged activation. Above the threshold every mask is the
identity, bit for bit (with 16-bit activations Step rounds its threshold to their type); NaN stays NaN. Two figures
say how far a mask is from being 1-Lipschitz: `max_slope`, its largest absolute derivative where there is one, and
`jump(threshold)`, how far the output leaps where |x| passes the threshold. `docs/method.md` says why both matter.
"""

import dataclasses
import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal, Protocol, cast, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from lipforge.errors import InputError
from lipforge.types import parse_number

Threshold = float | Tensor
"""One threshold for the layer, or a tensor of one per channel that broadcasts against the activation."""

Statistic = Literal["maximum", "moments"]
Argument = Literal["relative", "absolute", "signed"]


class Mask(Protocol):
    """What a Forge layer needs of a mask: calling it gives the forged activation, of the shape and type of x."""

    name: ClassVar[str]
    statistic: ClassVar[Statistic]

    @property
    def max_slope(self) -> float: ...

    def jump(self, threshold: float) -> float: ...

    def __call__(self, x: Tensor, threshold: Threshold, centre: Tensor | None = None) -> Tensor: ...


@dataclass(frozen=True)
class Step:
    """0 where |x| <= threshold (eq. 8). The derivative at the threshold is taken as 0.

    >>> Step()(torch.tensor([-2.0, -1.0, 0.5, 1.5]), 1.0)
    tensor([-2.0000,  0.0000,  0.0000,  1.5000])
    """

    name: ClassVar[str] = "step"
    statistic: ClassVar[Statistic] = "maximum"
    max_slope: ClassVar[float] = 1.0

    def factor(self, x: Tensor, threshold: Threshold) -> Tensor:
        return (x.abs() > threshold).to(x.dtype)

    def jump(self, threshold: float) -> float:
        return threshold

    def __call__(self, x: Tensor, threshold: Threshold, centre: Tensor | None = None) -> Tensor:
        if isinstance(threshold, Tensor):
            return x.masked_fill(x.abs() <= threshold, 0)
        return F.hardshrink(x, threshold)  # one native kernel, forward and backward


@dataclass(frozen=True)
class Piecewise:
    """0 up to d * threshold, then a linear factor that reaches 1 at the threshold (eq. 10). Continuous.

    At the inner knee the derivative is taken from outside, at the threshold from inside.

    >>> Piecewise(d=0.5)(torch.tensor([0.5, 0.75, 1.0, 2.0]), 1.0)
    tensor([0.0000, 0.3750, 1.0000, 2.0000])
    """

    d: float = 0.5
    name: ClassVar[str] = "piecewise"
    statistic: ClassVar[Statistic] = "maximum"

    def __post_init__(self) -> None:
        if not 0 <= self.d < 1:
            raise InputError(f"d must lie in [0, 1), got {self.d}; d = 1 is the mask Step()")

    @property
    def max_slope(self) -> float:
        return (2 - self.d) / (1 - self.d)

    def factor(self, x: Tensor, threshold: Threshold) -> Tensor:
        return ((x.abs() - self.d * threshold) / ((1 - self.d) * divisor(threshold))).clamp(0, 1)

    def jump(self, threshold: float) -> float:
        return 0.0

    def __call__(self, x: Tensor, threshold: Threshold, centre: Tensor | None = None) -> Tensor:
        return _mask_inside(self.factor(x, threshold), x, threshold)


@dataclass(frozen=True)
class Smooth:
    """x times the sigmoid of a * u - b where |x| <= threshold (eq. 9).

    The paper leaves open what u is: `relative` takes |x| / threshold, so that one (a, b) suits layers of every scale;
    `absolute` takes |x|; `signed` takes x as printed, which also suppresses every negative value up to the threshold.

    >>> Smooth(a=20, b=10)(torch.tensor([0.5, 2.0]), 1.0)
    tensor([0.2500, 2.0000])
    """

    a: float = 20.0
    b: float = 10.0
    argument: Argument = "relative"
    name: ClassVar[str] = "smooth"
    statistic: ClassVar[Statistic] = "maximum"

    def __post_init__(self) -> None:
        if not (math.isfinite(self.a) and self.a > 0 and math.isfinite(self.b)):
            raise InputError(f"a must be positive and b finite, got a={self.a}, b={self.b}")
        if self.argument not in get_args(Argument):
            raise InputError(f"argument must be one of {', '.join(get_args(Argument))}, got {self.argument!r}")

    @cached_property
    def max_slope(self) -> float:
        """The largest s + a u s (1 - s), s = sigmoid(a u - b), at least 1; over all thresholds unless `relative`."""
        # In v = a u the slope depends on b alone; beyond |b| + 40 the sigmoid is flat to double precision.
        high = self.a if self.argument == "relative" else abs(self.b) + 40
        low = -high if self.argument == "signed" else 0.0
        steepest = 1.0
        for _ in range(3):  # a grid, then finer ones around its best point
            v = torch.linspace(low, high, 10_001, dtype=torch.float64)
            s = torch.sigmoid(v - self.b)
            slopes = (s + v * s * (1 - s)).abs()
            best, reach = float(v[slopes.argmax()]), (high - low) / 1000
            low, high = max(low, best - reach), min(high, best + reach)
            steepest = max(steepest, float(slopes.max()))
        return steepest

    def factor(self, x: Tensor, threshold: Threshold) -> Tensor:
        u = x if self.argument == "signed" else x.abs()
        if self.argument == "relative":
            u = u / divisor(threshold)
        return torch.sigmoid(self.a * u - self.b)

    def jump(self, threshold: float) -> float:
        edges = torch.tensor([threshold, -threshold], dtype=torch.float64)
        return float((edges * (1 - self.factor(edges, threshold))).abs().max())

    def __call__(self, x: Tensor, threshold: Threshold, centre: Tensor | None = None) -> Tensor:
        return _mask_inside(self.factor(x, threshold), x, threshold)


@dataclass(frozen=True)
class MeanCentred:
    """MeanSparse (arXiv 2406.05927): the channel's mean where |x - mean| < ratio (its alpha) * standard deviation."""

    name: ClassVar[str] = "mean_centred"
    statistic: ClassVar[Statistic] = "moments"
    max_slope: ClassVar[float] = 1.0

    def jump(self, threshold: float) -> float:
        return threshold

    def __call__(self, x: Tensor, threshold: Threshold, centre: Tensor | None = None) -> Tensor:
        assert centre is not None, "MeanCentred is calibrated with moments, which always set a centre"
        return torch.where((x - centre).abs() < threshold, centre.to(x.dtype), x)


def divisor(threshold: Threshold) -> Threshold:
    """The threshold, but 1 for a dead channel, whose threshold of 0 would make NaN of 0 / 0."""
    return torch.where(threshold > 0, threshold, 1.0) if isinstance(threshold, Tensor) else threshold or 1.0


def _mask_inside(factor: Tensor, x: Tensor, threshold: Threshold) -> Tensor:
    """x * factor up to the threshold, x itself above it: rounding in the factor cannot leak out."""
    return torch.where(x.abs() <= threshold, (x * factor).to(x.dtype), x)


MASKS: dict[str, type[Any]] = {mask.name: mask for mask in (Step, Piecewise, Smooth, MeanCentred)}


def mask_to_dict(mask: Mask) -> dict[str, Any]:
    """The mask as JSON holds it.

    >>> mask_to_dict(Piecewise(d=0.25))
    {'name': 'piecewise', 'd': 0.25}
    """
    return {"name": mask.name, **dataclasses.asdict(mask)}  # type: ignore[call-overload]  # every mask is a dataclass


def mask_from_dict(fields: dict[str, Any]) -> Mask:
    """The inverse of `mask_to_dict`; unknown names and parameters are errors."""
    parameters = dict(fields)
    name = parameters.pop("name", None)
    if name not in MASKS:
        raise InputError(f"mask must be one of {', '.join(MASKS)}, got {name!r}")
    known = [field.name for field in dataclasses.fields(MASKS[name])]
    unknown = sorted(set(parameters) - set(known))
    if unknown:
        raise InputError(f"mask '{name}' has no parameter {unknown[0]!r}; it takes {', '.join(known) or 'none'}")
    return cast(Mask, MASKS[name](**parameters))


def parse_mask(text: str) -> Mask:
    """A mask from its text form: the name, then parameters after a colon.

    >>> parse_mask("piecewise:d=0.25"), parse_mask("step")
    (Piecewise(d=0.25), Step())
    """
    name, _, rest = text.strip().partition(":")
    fields: dict[str, Any] = {"name": name.replace("-", "_")}
    for part in filter(None, rest.split(",")):
        key, equals, value = (word.strip() for word in part.partition("="))
        if not equals:
            raise InputError(f"mask parameters are written key=value, got {part!r} in {text!r}")
        fields[key] = value if key == "argument" else parse_number(value, name=key)
    return mask_from_dict(fields)
