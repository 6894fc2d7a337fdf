"""What a calibration pass remembers of the activations at one site, in constant memory.

Each tracker is fed with `update`, merged over ranks with `reduce_`, and read with `bound` (and `centre`). The order
and the size of the batches do not matter: maxima and counts are exact, sums are kept in float64.
"""

from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor


class Tracker(Protocol):
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
        if x.numel() == 0:
            return
        self.calls += 1
        self._peak = torch.maximum(self._peak, _largest_magnitude(x, self.channel_dim).to(self._peak.dtype))

    def reduce_(self) -> None:
        dist.all_reduce(self._peak, dist.ReduceOp.MAX)

    def peak(self) -> Tensor:
        return self._peak.amax()

    def bound(self) -> Tensor:
        return self._peak

    def centre(self) -> None:
        return None


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
        if x.numel() == 0:
            return
        self.calls += 1
        self._peak = torch.maximum(self._peak, _largest_magnitude(x, None).to(self._peak.dtype))
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
        if x.numel() == 0:
            return
        self.calls += 1
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


def _largest_magnitude(x: Tensor, channel_dim: int | None) -> Tensor:
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
