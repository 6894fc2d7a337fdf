"""Batches that shrink where memory runs out: the images that did not fit are tried again, half as many at a time."""

from collections.abc import Callable
from typing import Literal, TypeVar

import torch

from lipforge.errors import MemoryLimitError, first_line, lacks_memory
from lipforge.logs import logger, warn

T = TypeVar("T")

Kind = Literal["attack", "forward"]
"""What needs the memory: an attack, with its gradients, or forward passes alone, which take far less."""

_most: dict[Kind, int] = {}  # images at once, where more have not fit: for the rest of this process


def in_batches(compute: Callable[[slice], T], count: int, kind: Kind) -> list[T]:
    """What `compute` makes of `count` images in order, given by their rows: of all at once if they fit into memory.

    Where they do not, it gets half of them, and so on down to a single image, which is a `MemoryLimitError`. The
    smaller size stays for the rest of this process, so `compute` must not depend on which images come together.
    """
    found: list[T] = []
    first = 0
    while first < count or not found:
        rows = slice(first, min(first + _most.get(kind, count), count))
        size, reason = rows.stop - first, ""
        try:
            found.append(compute(rows))
        except Exception as error:  # each allocator, and each tool that an attack comes from, has its own
            if isinstance(error, MemoryLimitError) or not lacks_memory(error):
                raise
            reason = first_line(error)
            if size < 2:
                raise MemoryLimitError(
                    f"out of memory even with one image at a time ({reason}); finished shards of a run are saved. "
                    "Resume in the same way with more memory, or on another device"
                ) from error
        # Only here, after the handler, is the error gone, whose traceback keeps the tensors of the failed batch.
        if reason:
            _shrink(kind, size, reason)
        else:
            first = rows.stop
    return found


def _shrink(kind: Kind, size: int, reason: str) -> None:
    """Halve the batches from now on; the user is told once, the log each time."""
    text = f"out of memory with batches of {size} images ({reason}); going on with batches of {size // 2}"
    if _most:
        logger.info(text)
    else:
        warn(f"{text}, and smaller ones where needed. No image is lost")
    _most[kind] = size // 2
    _free_cache()


def _free_cache() -> None:
    """Give back what torch keeps of the failed batch: half of it may need the memory in other pieces."""
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    if torch.backends.mps.is_available():
        torch.mps.empty_cache()
