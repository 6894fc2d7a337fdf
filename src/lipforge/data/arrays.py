"""Data sets held in memory (or memory-mapped): images and labels as two arrays."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lipforge.batching import BATCH_SIZE, check_images
from lipforge.data.base import DataSet, Indices, Ints, check_indices, content_digest, reading
from lipforge.errors import DataError, InputError
from lipforge.records import most_unpacked
from lipforge.sources import Layout, channels_first, unit_range

IMAGE_KEYS = ("images", "x", "x_test", "data", "arr_0")
LABEL_KEYS = ("labels", "y", "y_test", "targets", "arr_1")
NUMPY = "a readable NumPy file"


@dataclass(frozen=True, eq=False)
class ArrayData(DataSet):
    """Images (N, C, H, W), bytes or floats in [0, 1], with labels; `from_arrays` builds and checks it."""

    name: str
    images: npt.NDArray[Any] = field(repr=False)
    labels: Ints = field(repr=False)
    classes: int
    class_names: tuple[str, ...] = ()
    find_training: Callable[[], DataSet] | None = field(default=None, repr=False)

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, indices: Indices) -> tuple[Tensor, Tensor]:
        at = check_indices(indices, len(self))
        return unit_range(self.images[at]), torch.from_numpy(self.labels[at])

    @cached_property
    def content(self) -> str:
        """The SHA-256 of all images and labels."""
        return content_digest([(self.images, self.labels)])

    def describe(self) -> dict[str, Any]:
        return super().describe() | {"image": list(self.images.shape[1:])}


def from_arrays(
    images: npt.ArrayLike | Tensor,
    labels: npt.ArrayLike | Tensor,
    *,
    name: str = "arrays",
    classes: int | None = None,
    class_names: Sequence[str] = (),
    layout: Layout | None = None,
) -> ArrayData:
    """A data set over images (N, H, W), NHWC or NCHW, bytes or floats in [0, 1], and whole-number labels.

    The layout is read from the axis of size 1 or 3; name it where that is ambiguous. Without `classes` or
    `class_names` there are as many classes as the largest label says.

    >>> data = from_arrays(np.zeros((2, 8, 8, 3), np.uint8), [0, 4])
    >>> len(data), data.classes, data[1][0].shape
    (2, 5, torch.Size([3, 8, 8]))
    """
    pixels = channels_first(np.asarray(images), layout, name)
    targets = np.asarray(labels)
    if targets.ndim != 1 or targets.dtype.kind not in "iu":
        raise InputError(f"labels of {name} must be whole numbers (N,), got {targets.dtype} of shape {targets.shape}")
    if len(pixels) != len(targets):
        raise InputError(f"{name} must have one label per image, got {len(pixels)} images and {len(targets)} labels")
    if len(pixels) == 0:
        raise InputError(f"{name} must not be empty: it holds no image at all")
    _check_pixels(pixels, name)
    known = classes or len(class_names) or int(targets.max()) + 1
    if class_names and len(class_names) != known:
        raise InputError(f"class_names of {name} must be {known}, one per class, got {len(class_names)}")
    check_labels(targets, known, name)
    return ArrayData(name, pixels, targets.astype(np.int64), known, tuple(class_names))


def check_labels(labels: npt.NDArray[Any], classes: int, name: str) -> None:
    """Raise unless every label lies in 0..classes-1."""
    wrong = np.flatnonzero((labels < 0) | (labels >= classes))
    if len(wrong):
        raise InputError(
            f"labels of {name} must lie in 0..{classes - 1}, got {labels[wrong[0]]} for image {wrong[0]} "
            f"({len(wrong)} labels out of range)"
        )


def read_npz(path: str | Path) -> ArrayData:
    """The data set in an .npz file with the arrays `images` and `labels` (or x/y, x_test/y_test, data/targets)."""
    with reading(path, NUMPY), open(path, "rb") as file:
        arrays = np.load(file, allow_pickle=False)
        if isinstance(arrays, np.ndarray):
            raise DataError(f"{path} is a single array, not an .npz archive; use npy:IMAGES,LABELS")
        limit = most_unpacked(Path(path).stat().st_size)
        if sum(entry.file_size for entry in arrays.zip.infolist()) > limit:
            raise DataError(f"{path} unpacks to more than {limit >> 20} MB; if it should, save it with np.savez")
        names = [next((key for key in keys if key in arrays), "") for keys in (IMAGE_KEYS, LABEL_KEYS)]
        if not all(names):
            raise DataError(f"{path} must hold the arrays 'images' and 'labels', it holds {', '.join(arrays)}")
        images, labels = (np.asarray(arrays[name]) for name in names)
    return from_arrays(images, labels, name=f"npz:{path}")


def read_npy(path: str) -> ArrayData:
    """The data set in two .npy files, "IMAGES,LABELS" or a folder of images.npy and labels.npy, memory-mapped."""
    first, comma, second = path.partition(",")
    arrays = []
    for file in (first, second) if comma else (Path(path) / "images.npy", Path(path) / "labels.npy"):
        with reading(file, NUMPY):
            arrays.append(np.load(file, mmap_mode="r", allow_pickle=False))
    return from_arrays(*arrays, name=f"npy:{path}")


def _check_pixels(images: npt.NDArray[Any], name: str) -> None:
    if images.dtype == np.uint8:
        return
    if images.dtype.kind != "f":
        raise InputError(f"images of {name} must be uint8, or floats in [0, 1], got {images.dtype}")
    for first in range(0, len(images), BATCH_SIZE):
        try:
            check_images(unit_range(images[first : first + BATCH_SIZE]), first=first)
        except InputError as error:
            raise InputError(f"{name}: {error}") from None
