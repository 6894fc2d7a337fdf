"""Batches that shrink where memory runs out: the images that did not fit are tried again, half as many at a time."""

from collections.abc import Callable
from typing import Literal, TypeVar

import torch
from torch import Tensor

from lipforge.errors import MemoryLimitError, first_line, lacks_memory
from lipforge.logs import logger, warn

T = TypeVar("T")

Kind = Literal["attack", "forward"]
"""What needs the memory: an attack, with its gradients, or forward passes alone, which take far less."""

_most: dict[tuple[Kind, torch.Size, torch.device], int] = {}
"""How many images of a shape fit on a device at once, where more did not: for the rest of this process."""


def in_batches(compute: Callable[[slice], T], x: Tensor, kind: Kind) -> list[T]:
    """What `compute` makes of the images `x` in order, given by their rows: of all at once if they fit into memory.

    Where they do not, it gets half of them, and so on down to a single image, which is a `MemoryLimitError`. The
    smaller size stays for images of this shape, so `compute` must not depend on which images come together.
    """
    key, count = (kind, x.shape[1:], x.device), len(x)
    found: list[T] = []
    first, most = 0, min(_most.get(key, count), count)
    while first < count or not found:
        rows, reason = slice(first, min(first + most, count)), ""
        size = rows.stop - first
        try:
            found.append(compute(rows))
        except Exception as error:  # each allocator, and each tool that an attack comes from, has its own
            if not lacks_memory(error):
                raise
            reason = first_line(error)
            if size < 2 and isinstance(error, MemoryLimitError):  # of a forward pass inside an attack
                raise
            if size < 2:
                raise MemoryLimitError(
                    f"out of memory even with one image at a time ({reason}); finished shards of a run are saved. "
                    "Resume in the same way with more memory, or on another device"
                ) from error
        # Only here, after the handler, is the error gone, whose traceback keeps the tensors of the failed batch.
        if reason:
            _shrink(key, size, reason, lasting=size == most)
            most = size // 2
        else:
            first = rows.stop
    return found


def _shrink(key: tuple[Kind, torch.Size, torch.device], size: int, reason: str, *, lasting: bool) -> None:
    """Say that batches are halved, to the user once, to the log each time; for good unless it was the short last one.

    A forward pass inside an attack may not have fit for what the attack itself had: it starts anew."""
    text = f"out of memory with batches of {size} images ({reason}); going on with batches of {size // 2}"
    if _most:
        logger.info(text)
    else:
        warn(f"{text}, and smaller ones where needed. No image is lost")
    kind, shape, device = key
    if kind == "attack":
        _most.pop(("forward", shape, device), None)
    if lasting:
        _most[key] = size // 2
    _free_cache()


def _free_cache() -> None:
    """Give back what torch keeps of the failed batch: half of it may need the memory in other pieces."""
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    if torch.backends.mps.is_available():
        torch.mps.empty_cache()
