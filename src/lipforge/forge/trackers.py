"""What a calibration pass remembers of the activations at one site, in constant memory.

Fed with `update`, merged over ranks with `reduce_`, read with `bound` (and `centre`); `peak` is a scalar on the device
that is not finite as soon as any x was not. Maxima and counts are exact, whatever the batches; sums are in float64.
"""

import torch
import torch.distributed as dist
from torch import Tensor


class Maximum:
    """The largest |x|, over the layer or per channel (Algorithm 1, line 3)."""

    def __init__(self, start: Tensor, channel_dim: int | None = None) -> None:
        self.calls = 0
        self.channel_dim = channel_dim
        self.statistic = "maximum" if channel_dim is None else "maximum per channel"
        self._peak = start.clone()

    def update(self, x: Tensor) -> None:
        self._peak = torch.maximum(self._peak, _largest_magnitude(x, self.channel_dim).to(self._peak.dtype))

    def reduce_(self) -> None:
        dist.all_reduce(self._peak, dist.ReduceOp.MAX)

    def peak(self) -> Tensor:
        return self._peak.amax()

    def bound(self) -> Tensor:
        return self._peak


class Quantile:
    """A quantile of |x| from a histogram whose bins are the leading bits of float32: 2^-10 wide in relative terms.

    The result lies in [q, q * (1 + 2^-10)] for the exact q in [2^-32, 2^32], and is never above the largest |x|.
    """

    MANTISSA_BITS = 10
    SHIFT = 23 - MANTISSA_BITS
    LOWEST = (127 - 32) << MANTISSA_BITS
    BINS = 64 << MANTISSA_BITS

    def __init__(self, quantile: float, device: torch.device) -> None:
        self.calls = 0
        self.quantile = quantile
        self.statistic = f"quantile {quantile}"
        self._largest = Maximum(torch.zeros((), device=device))
        self._counts = torch.zeros(self.BINS, dtype=torch.int64, device=device)

    def update(self, x: Tensor) -> None:
        self._largest.update(x)
        code = x.abs().float().view(torch.int32) >> self.SHIFT
        code = code.sub_(self.LOWEST).clamp_(0, self.BINS - 1)
        self._counts += torch.bincount(code.flatten(), minlength=self.BINS)

    def reduce_(self) -> None:
        self._largest.reduce_()
        dist.all_reduce(self._counts, dist.ReduceOp.SUM)

    def peak(self) -> Tensor:
        return self._largest.peak()

    def bound(self) -> Tensor:
        cumulative = self._counts.cumsum(0)
        wanted = torch.ceil(self.quantile * cumulative[-1].double()).long()
        code = torch.searchsorted(cumulative, wanted.clamp(min=1))
        upper_edge = ((code + 1 + self.LOWEST) << self.SHIFT).to(torch.int32).view(torch.float32)
        return torch.where(code >= self.BINS - 1, self.peak(), torch.minimum(upper_edge, self.peak()))


class Moments:
    """Mean and standard deviation (of the population) per channel, for MeanCentred."""

    statistic = "mean and deviation per channel"

    def __init__(self, channels: int, channel_dim: int, device: torch.device) -> None:
        self.calls = 0
        self.channel_dim = channel_dim
        self._count = torch.zeros((), dtype=torch.float64, device=device)
        self._sum = torch.zeros(channels, dtype=torch.float64, device=device)
        self._squares = self._sum.clone()

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


Tracker = Maximum | Quantile | Moments


def _largest_magnitude(x: Tensor, channel_dim: int | None) -> Tensor:
    if channel_dim is not None:
        x = x.unsqueeze(0)
        dims = other_dims(x, channel_dim)
        return torch.maximum(x.amax(dims), -x.amin(dims))
    if x.ndim == 4 and x.is_contiguous(memory_format=torch.channels_last):
        x = x.permute(0, 2, 3, 1)  # the same elements as a contiguous view: aminmax is 10x slower on channels_last
    low, high = torch.aminmax(x)  # one read of the tensor, no copy
    return torch.maximum(high, -low)


def other_dims(x: Tensor, channel_dim: int) -> list[int]:
    """Every dimension but the channels'; `x` needs a second one, for torch takes an empty list to mean all."""
    return [dim for dim in range(x.ndim) if dim != channel_dim % x.ndim]
