"""Read a whole data set once and say what is in it."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lipforge.batching import BATCH_SIZE
from lipforge.data.arrays import ArrayData
from lipforge.data.base import DataSet, Ints, content_digest
from lipforge.data.folder import FolderData, FolderOptions
from lipforge.data.load import load_data
from lipforge.data.workers import decode_files
from lipforge.errors import DataError
from lipforge.progress import progress


@dataclass(frozen=True)
class DataReport:
    """What `check_data` saw: `count` images that could be read, `unreadable` files that could not.

    `low` and `high` are the extreme pixel values in [0, 1]; `digest` is the identity of what was read.
    """

    name: str
    count: int
    classes: int
    class_names: tuple[str, ...]
    histogram: tuple[int, ...]
    image: tuple[int, ...]
    low: float
    high: float
    digest: str
    unreadable: tuple[str, ...]


def check_data(
    spec: str, *, root: str | Path | None = None, folder: FolderOptions | None = None, download: bool = True
) -> DataReport:
    """Decode every image that `spec` names and report counts, range, digest and files that cannot be read.

    Two sets with the same digest are the same, image by image and label by label; for sets known by name it is the
    digest that lipforge pins.
    """
    if spec.startswith("folder:"):
        # Skipping would hide what this is asked to find.
        folder = replace(folder or FolderOptions(), on_error="raise")
    data = load_data(spec, root=root, folder=folder, download=download)
    seen = _Seen(data)
    digest = content_digest(seen.pieces())
    if not seen.shapes:
        raise DataError(f"none of the {len(seen.unreadable)} images of {spec} can be read: {seen.unreadable[0]}")
    if len(seen.shapes) > 1:
        raise DataError(f"{spec} has images of different sizes, {sorted(seen.shapes)}; set resize and crop")
    return DataReport(
        spec,
        int(seen.histogram.sum()),
        data.classes,
        data.class_names,
        tuple(seen.histogram.tolist()),
        seen.shapes.pop(),
        seen.low,
        seen.high,
        digest,
        tuple(seen.unreadable),
    )


class _Seen:
    """What has been read so far, gathered while the pieces pass by on their way to the digest."""

    def __init__(self, data: DataSet) -> None:
        self.data = data
        self.histogram = np.zeros(data.classes, dtype=np.int64)
        self.shapes: set[tuple[int, ...]] = set()
        self.low, self.high = np.inf, -np.inf
        self.unreadable: list[str] = []

    def pieces(self) -> Iterator[tuple[npt.NDArray[Any], Ints]]:
        with progress(f"checking {self.data.name}", len(self.data)) as step:
            for images, labels, failures in _read(self.data):
                self.unreadable += failures
                step(len(labels) + len(failures), f"{len(self.unreadable)} unreadable" if self.unreadable else "")
                if len(labels):
                    self._look(images, labels)
                    yield images, labels

    def _look(self, images: npt.NDArray[Any], labels: Ints) -> None:
        scale = 255 if images.dtype == np.uint8 else 1
        self.shapes.add(images.shape[1:])
        self.histogram += np.bincount(labels, minlength=len(self.histogram))
        self.low, self.high = min(self.low, float(images.min()) / scale), max(self.high, float(images.max()) / scale)


def _read(data: DataSet) -> Iterator[tuple[npt.NDArray[Any], Ints, list[str]]]:
    """Images as they are kept (bytes or float32), labels, and what could not be read, batch by batch."""
    if isinstance(data, FolderData):
        every = np.arange(len(data))
        for decoded in decode_files(data.listing, data.prepare, every, BATCH_SIZE, data.options.workers):
            yield decoded.images.numpy(), decoded.labels.numpy(), [reason for _, reason in decoded.failures]
        return
    floats = isinstance(data, ArrayData) and data.images.dtype != np.uint8
    for images, labels in data.batches(BATCH_SIZE):
        # A byte k comes as k / 255, which times 255 rounds to k again.
        kept = images.numpy() if floats else images.mul(255).round().byte().numpy()
        yield kept, labels.numpy(), []
