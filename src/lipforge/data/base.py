"""What every data set of lipforge offers, and the small helpers that they share."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from torch import Tensor
from torch.utils.data import Dataset

from lipforge.batching import BATCH_SIZE
from lipforge.errors import DataError, InputError, LipforgeError, first_line

Bytes: TypeAlias = npt.NDArray[np.uint8]
Ints: TypeAlias = npt.NDArray[np.int64]
Indices: TypeAlias = Sequence[int] | Ints | Tensor


class DataSet(Dataset[tuple[Tensor, int]]):
    """An `ImageData` that is also a torch map-style data set; `class_names` is empty where they are not known."""

    name: str
    classes: int
    class_names: tuple[str, ...]
    find_training: "Callable[[], DataSet] | None" = None

    @property
    def training(self) -> "DataSet | None":
        """The training images that belong to this test set; found and read when first asked for."""
        return self.find_training() if self.find_training else None

    def __len__(self) -> int:
        raise NotImplementedError

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        # As Python counts, negative from the end; IndexError ends a `for` loop over the set.
        if not -len(self) <= index < len(self):
            raise IndexError(f"index {index} is outside a set of {len(self)} images")
        images, labels = self.batch([index % len(self)])
        return images[0], int(labels[0])

    def batch(self, indices: Indices) -> tuple[Tensor, Tensor]:
        """Images (N, C, H, W) in [0, 1] as float32 and labels (N,) at these positions."""
        raise NotImplementedError

    def batches(self, batch_size: int = BATCH_SIZE) -> Iterator[tuple[Tensor, Tensor]]:
        """All images and labels in order."""
        return stream(self, np.arange(len(self)), batch_size)

    def describe(self) -> dict[str, Any]:
        """Where the images came from, ready for JSON."""
        return {"name": self.name, "count": len(self), "classes": self.classes}


def stream(data: Any, indices: Ints, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """The images of `data` at `indices` in that order, batch by batch; by its own `stream` where it has one."""
    if batch_size < 1:
        raise InputError(f"batch_size must be at least 1, got {batch_size}")
    if hasattr(data, "stream"):
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


@contextmanager
def reading(name: str | Path, what: str) -> Iterator[None]:
    """Turn what a decoder raises on a damaged file into an error that names the file."""
    try:
        yield
    except FileNotFoundError:
        raise DataError(f"no file {name}") from None
    except LipforgeError:
        raise
    except Exception as error:  # broken bytes lead decoders anywhere: SyntaxError, TokenError, MemoryError, ...
        raise DataError(f"{name} is not {what} ({first_line(error)}); was it cut short?") from None
