"""What every data set of lipforge offers, and the small helpers that they share."""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lipforge.batching import ImageData
from lipforge.errors import InputError

Bytes: TypeAlias = npt.NDArray[np.uint8]
Ints: TypeAlias = npt.NDArray[np.int64]
Indices: TypeAlias = Sequence[int] | Ints | Tensor


class DataSet(ImageData, Protocol):
    """An `ImageData` that is also a torch map-style data set and knows where it came from."""

    @property
    def class_names(self) -> tuple[str, ...]:
        """The names of the classes, empty where they are not known."""
        ...

    @property
    def training(self) -> "DataSet | None":
        """The training images that belong to this test set, where the source has both."""
        ...

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        """One image (C, H, W) in [0, 1] and its label."""
        ...

    def describe(self) -> dict[str, Any]:
        """Where the images came from, ready for JSON."""
        ...


@runtime_checkable
class Streams(Protocol):
    """A data set with a way of its own to read many images in a given order."""

    def stream(self, indices: Ints, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]: ...


def stream(data: ImageData, indices: Ints, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """The images at `indices` in that order, batch by batch, by the fastest way that `data` has."""
    if batch_size < 1:
        raise InputError(f"batch_size must be at least 1, got {batch_size}")
    if isinstance(data, Streams):
        yield from data.stream(indices, batch_size)
        return
    for chunk in chunks(indices, batch_size):
        yield data.batch(chunk.tolist())


def chunks(indices: Ints, batch_size: int) -> list[Ints]:
    """`indices` in pieces of `batch_size`; the last one may be shorter."""
    return [indices[first : first + batch_size] for first in range(0, len(indices), batch_size)]


def check_indices(indices: Indices, count: int) -> Ints:
    """`indices` as an int64 array, every one of them a position in a set of `count` images.

    >>> check_indices([2, 0], count=3)
    array([2, 0])
    """
    given = np.asarray(indices)
    if given.ndim != 1 or (len(given) and given.dtype.kind not in "iu"):
        raise InputError(f"indices must be a list of whole numbers, got {given.dtype} of shape {given.shape}")
    checked: Ints = given.astype(np.int64)
    if len(checked) and not 0 <= checked.min() <= checked.max() < count:
        raise InputError(f"indices must lie in 0..{count - 1}, got {checked.min()}..{checked.max()}")
    return checked


def position(index: int, count: int) -> int:
    """`index` as Python counts, negative from the end; IndexError ends a `for` loop over the set."""
    if not -count <= index < count:
        raise IndexError(f"index {index} is outside a set of {count} images")
    return index % count


def unit_range(images: npt.NDArray[Any]) -> Tensor:
    """Bytes divided by 255, floats as they are, as float32; `images` must be a fresh array, it may be used as it is."""
    if images.dtype == np.uint8:
        # NumPy, not torch, makes the float array: glibc's aligned allocation, which torch uses, cannot always take back
        # a freed block of the same size, and memory then grows by a batch at a time.
        return torch.from_numpy(np.true_divide(np.ascontiguousarray(images), np.float32(255), dtype=np.float32))
    return torch.from_numpy(np.ascontiguousarray(images, dtype=np.float32))


def content_digest(pieces: Iterable[tuple[npt.NDArray[Any], Ints]]) -> str:
    """SHA-256 over all images (C order, NCHW), then all labels (little-endian int64): the identity of a set."""
    digest = hashlib.sha256()
    labels: list[Ints] = []
    for images, targets in pieces:
        digest.update(np.ascontiguousarray(images).data)
        labels.append(targets)
    for targets in labels:
        digest.update(targets.astype("<i8").tobytes())
    return digest.hexdigest()
