"""Random numbers that depend on (seed, stream, sample id, counter) and on nothing else.

The generator is Philox4x32 with 10 rounds (Salmon, Moraes, Dror and Shaw 2011) on int64 tensors: a counter-based block
cipher without state. The 64-bit key is a hash of seed and stream, the 128-bit counter is (block, counter, sample id).
So an image gets the same numbers in every batch, in every order, on every worker: bit for bit the same on every device,
except that `normal` takes float64 logarithms and cosines, which may be rounded differently in the last place.
"""

import hashlib
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from lipforge.errors import InputError

_WORD = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10


def uniform(
    seed: int,
    sample_ids: Tensor,
    *,
    stream: str,
    shape: Sequence[int],
    low: float = 0.0,
    high: float = 1.0,
    counter: int | Tensor = 0,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Numbers (N, *shape) uniform on [low, high], in steps of (high - low) / 2^24, on the device of `sample_ids`.

    >>> ids = torch.tensor([7, 3])
    >>> both = uniform(0, ids, stream="start", shape=(2,))
    >>> torch.equal(both[1:], uniform(0, ids[1:], stream="start", shape=(2,)))
    True
    """
    unit = (bits(seed, sample_ids, stream=stream, shape=shape, counter=counter) >> 8).to(dtype) * 2.0**-24
    return unit if (low, high) == (0.0, 1.0) else unit * (high - low) + low


def normal(
    seed: int,
    sample_ids: Tensor,
    *,
    stream: str,
    shape: Sequence[int],
    counter: int | Tensor = 0,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Standard normal numbers (N, *shape) by the Box-Muller transform, computed in float64."""
    words = bits(seed, sample_ids, stream=stream, shape=(2, *shape), counter=counter).double()
    # The half keeps the logarithm away from 0; the tail reaches sqrt(2 * 33 * ln 2) = 6.8 standard deviations.
    radius = torch.sqrt(-2.0 * torch.log((words[:, 0] + 0.5) * 2.0**-32))
    return (radius * torch.cos(words[:, 1] * (2.0 * math.pi * 2.0**-32))).to(dtype)


def signs(
    seed: int,
    sample_ids: Tensor,
    *,
    stream: str,
    shape: Sequence[int],
    counter: int = 0,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Numbers (N, *shape) that are -1 or +1 with equal probability."""
    top = bits(seed, sample_ids, stream=stream, shape=shape, counter=counter) >> 31
    return (2 * top - 1).to(dtype)


def integers(
    seed: int, sample_ids: Tensor, *, stream: str, shape: Sequence[int], below: int, counter: int = 0
) -> Tensor:
    """Integers (N, *shape) in [0, below); each has the probability 1 / below up to 2^-32."""
    if not 1 <= below <= 2**31:
        raise InputError(f"below must lie in [1, 2^31], got {below}")
    return (bits(seed, sample_ids, stream=stream, shape=shape, counter=counter) * below) >> 32


def permutation(seed: int, count: int, *, stream: str, counter: int = 0) -> Tensor:
    """The integers 0 .. count - 1 in random order, on the CPU; `counter` numbers the shuffles, an epoch for example."""
    words = bits(seed, torch.arange(count), stream=stream, shape=(2,), counter=counter)
    return torch.argsort((words[:, 0] >> 1 << 32) | words[:, 1], stable=True)


def bits(seed: int, sample_ids: Tensor, *, stream: str, shape: Sequence[int], counter: int | Tensor = 0) -> Tensor:
    """Words (N, *shape) of 32 random bits each, as int64 in [0, 2^32); `counter` is one for all, or one each (N,)."""
    _check(sample_ids, shape, counter)
    size = math.prod(shape)
    blocks = -(-size // 4)
    low_id, high_id = (sample_ids & _WORD)[:, None], (sample_ids >> 32 & _WORD)[:, None]
    block = torch.arange(blocks, device=sample_ids.device)[None, :]
    count = counter[:, None] if isinstance(counter, Tensor) else torch.full_like(block, counter)
    words = philox((block, count, low_id, high_id), _key(seed, stream))
    return torch.stack(words, dim=2).flatten(1)[:, :size].reshape(len(sample_ids), *shape)


def philox(counter: Sequence[Tensor], key: tuple[int, int]) -> tuple[Tensor, ...]:
    """The four words of Philox4x32-10 for four broadcastable counter words and a key of two words."""
    word: tuple[Tensor, ...] = tuple(counter)
    for number in range(_ROUNDS):
        # int64 products wrap, which keeps both halves right; the mask undoes the sign of the shifted half.
        first, second = word[0] * _MULTIPLIERS[0], word[2] * _MULTIPLIERS[1]
        left, right = ((part + number * step) & _WORD for part, step in zip(key, _WEYL, strict=True))
        word = (
            (second >> 32 & _WORD) ^ word[1] ^ left,
            second & _WORD,
            (first >> 32 & _WORD) ^ word[3] ^ right,
            first & _WORD,
        )
    return word


def _key(seed: int, stream: str) -> tuple[int, int]:
    digest = hashlib.blake2b(f"{seed}:{stream}".encode(), digest_size=8).digest()
    return int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:], "little")


def _check(sample_ids: Tensor, shape: Sequence[int], counter: int | Tensor) -> None:
    if sample_ids.ndim != 1 or sample_ids.dtype != torch.int64:
        raise InputError(f"sample_ids must be int64 of shape (N,), got {sample_ids.dtype} of {tuple(sample_ids.shape)}")
    if isinstance(counter, Tensor):  # its values are not looked at: that would wait for the device
        if counter.dtype != torch.int64 or counter.shape != sample_ids.shape:
            shape = tuple(counter.shape)
            raise InputError(f"counter must be an int or int64 of shape (N,), got {counter.dtype} of {shape}")
    elif not 0 <= counter <= _WORD:
        raise InputError(f"counter must lie in [0, 2^32), got {counter}")
    if math.prod(shape) > 4 * _WORD:
        raise InputError(f"shape must hold at most 2^34 numbers per sample, got {tuple(shape)}")
