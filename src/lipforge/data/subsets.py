"""Disjoint parts of a data set, chosen by index, the same for the same seed on every machine."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor

from lipforge.batching import BATCH_SIZE, ImageData, LabelledSource, as_data
from lipforge.data.base import DataSet, Indices, Ints, check_indices, stream
from lipforge.errors import InputError
from lipforge.ranks import own_rank


@dataclass(frozen=True, eq=False)
class View(DataSet):
    """Images of a data set by position, read when asked for; `seed` says how they were drawn (None: not at random)."""

    name: str
    data: ImageData
    indices: Ints = field(repr=False)
    classes: int
    class_names: tuple[str, ...] = ()
    seed: int | None = None

    @property
    def training(self) -> DataSet | None:
        return getattr(self.data, "training", None)

    def __len__(self) -> int:
        return len(self.indices)

    def batch(self, indices: Indices) -> tuple[Tensor, Tensor]:
        return self.data.batch(self.indices[check_indices(indices, len(self))].tolist())

    def batches(self, batch_size: int = BATCH_SIZE) -> Iterator[tuple[Tensor, Tensor]]:
        return stream(self.data, self.indices, batch_size)

    @property
    def content(self) -> str | None:
        """The SHA-256 of everything in the set below, where that is in memory."""
        return getattr(self.data, "content", None)

    def describe(self) -> dict[str, Any]:
        """The view's name, count, seed and the SHA-256 of its indices (little-endian int64), ready for JSON."""
        digest = hashlib.sha256(self.indices.astype("<i8").tobytes()).hexdigest()
        return {"name": self.name, "count": len(self), "of": self.data.name, "seed": self.seed, "digest": digest}


def view(data: LabelledSource, indices: Indices, *, name: str, seed: int | None = None) -> View:
    """The images of `data` at `indices`; a view of a view refers to the set below both."""
    data = as_data(data)
    chosen = check_indices(indices, len(data))
    if isinstance(data, View):
        chosen, data = data.indices[chosen], data.data
    return View(name, data, chosen, data.classes, getattr(data, "class_names", ()), seed)


def split(
    data: LabelledSource, calibration: int = 5000, validation: int = 1000, test: int | None = None, seed: int = 0
) -> tuple[View, View, View]:
    """Three disjoint views of `data`: for calibration, for choosing the ratio, and for the final test.

    Where `data` knows its training images (`load_data("cifar10")`, or a folder with train/ and val/), calibration and
    validation are drawn from those and the test part is `data` itself: all of it in its own order, or `test` images at
    random. Any other set is divided in three; the test part is then what remains, or `test` images of it. Parts that
    are drawn come in random order, which depends on (seed, index) alone, so a prefix of one is again a random sample.
    """
    for name, count in (("calibration", calibration), ("validation", validation), ("test", test or 0)):
        if count < 0:
            raise InputError(f"{name} must not be negative, got {count}")
    data = as_data(data)
    training = getattr(data, "training", None)
    source: ImageData = data if training is None else training
    first, second = calibration, calibration + validation
    drawn = second if training is not None else second + (test or 0)
    if drawn > len(source):
        raise InputError(
            f"{source.name} has {len(source)} images, too few for {drawn} "
            f"(calibration {calibration}, validation {validation}{'' if training else f', test {test or 0}'}); "
            "ask for fewer of each (--calibrate, --validate), or bring more images"
        )
    order = shuffled(len(source), seed)
    parts = (
        view(source, order[:first], name=f"{source.name}/calibration", seed=seed),
        view(source, order[first:second], name=f"{source.name}/validation", seed=seed),
    )
    name = f"{data.name}/test"
    if training is None:
        return (*parts, view(data, order[second:][:test], name=name, seed=seed))
    if test is None:
        return (*parts, view(data, np.arange(len(data)), name=name))
    if test > len(data):
        raise InputError(f"{data.name} has {len(data)} images, too few for test {test}")
    return (*parts, view(data, shuffled(len(data), seed)[:test], name=name, seed=seed))


def take(data: LabelledSource, limit: int, seed: int | None = None) -> View:
    """At most `limit` images of `data`: the first ones, or with a seed, random ones.

    >>> from lipforge.data import from_arrays
    >>> take(from_arrays(np.zeros((4, 1, 2, 2)), [0, 1, 2, 3]), 2, seed=0).indices
    array([3, 1])
    """
    data = as_data(data)
    if limit < 1:
        raise InputError(f"limit must be at least 1, got {limit}")
    limit = min(limit, len(data))
    chosen = np.arange(limit) if seed is None else shuffled(len(data), seed)[:limit]
    label = f"first {limit}" if seed is None else f"random {limit}"
    return view(data, chosen, name=f"{data.name}/{label}", seed=seed)


def own_share(data: ImageData) -> ImageData:
    """This rank's images of `data`, each of which belongs to one rank; all of them in a process of its own."""
    rank = own_rank()
    if rank.count == 1:
        return data
    if len(data) < rank.count:
        raise InputError(f"data must have an image for each of the {rank.count} processes, got {len(data)}")
    return view(data, rank.share(len(data)), name=data.name)


def shuffled(count: int, seed: int) -> Ints:
    """0..count-1 by a 64-bit key of (seed, index), SplitMix64: unlike shuffles of NumPy and torch it never changes.

    >>> sorted(shuffled(5, seed=1).tolist())
    [0, 1, 2, 3, 4]
    """
    offset = hashlib.sha256(f"lipforge split {seed}".encode()).digest()[:8]
    key = np.arange(count, dtype=np.uint64) + np.frombuffer(offset, "<u8")
    key *= np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        key ^= key >> np.uint64(shift)
        key *= np.uint64(factor)
    key ^= key >> np.uint64(31)
    return np.argsort(key, kind="stable").astype(np.int64)
