"""Image folders in ImageNet's layout: one sub-folder per class, decoded as they are asked for."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from torch import Tensor

from lipforge.batching import BATCH_SIZE
from lipforge.data.base import DataSet, Indices, Ints, check_indices
from lipforge.data.images import (
    FILTERS,
    Decoded,
    Interpolation,
    Listing,
    Prepare,
    class_folders,
    decode_batch,
    decode_files,
    find_parts,
    list_files,
    read_listing,
)
from lipforge.data.subsets import shuffled
from lipforge.errors import DataError, InputError
from lipforge.logs import warn
from lipforge.progress import progress
from lipforge.sources import unit_range

OnError = Literal["raise", "skip"]


@dataclass(frozen=True)
class FolderOptions:
    """How the images of a folder are read.

    The default is RobustBench's `BicubicRes256Crop224`; some of its ImageNet models ask for `interpolation="bilinear"`.
    `files` names a text file of paths below the folder, one per line, to read just those in that order; "robustbench"
    is the list of 5,000 validation images of ImageNet in its package. `class_names` gives all sub-folder names where
    the folder lacks some, so that the labels keep their numbers.
    """

    resize: int | None = 256
    crop: int | None = 224
    interpolation: Interpolation = "bicubic"
    on_error: OnError = "raise"
    workers: int | None = None
    files: str | None = None
    class_names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name, value in (("resize", self.resize), ("crop", self.crop)):
            if value is not None and value < 1:
                raise InputError(f"{name} must be at least 1 pixel, or None to leave it out, got {value}")
        if self.interpolation not in FILTERS:
            raise InputError(f"interpolation must be one of {', '.join(FILTERS)}, got {self.interpolation!r}")
        if self.on_error not in get_args(OnError):
            raise InputError(f"on_error must be 'raise' or 'skip', got {self.on_error!r}")
        if self.workers is not None and self.workers < 0:
            raise InputError(f"workers must not be negative, got {self.workers}")

    @property
    def prepare(self) -> Prepare:
        return Prepare(self.resize, self.crop, self.interpolation)


@dataclass(frozen=True, eq=False)
class FolderData(DataSet):
    """The images of a folder, read when asked for; `seed` drew them (None: all), `skipped` names unreadable files."""

    name: str
    listing: Listing = field(repr=False)
    options: FolderOptions
    classes: int
    class_names: tuple[str, ...]
    seed: int | None = None
    skipped: tuple[str, ...] = ()
    find_training: partial["FolderData"] | None = field(default=None, repr=False)

    @property
    def labels(self) -> Ints:
        return self.listing.labels

    def __len__(self) -> int:
        return len(self.listing)

    def batch(self, indices: Indices) -> tuple[Tensor, Tensor]:
        at = check_indices(indices, len(self))
        return self._checked(decode_batch(self.listing, self.options.prepare, at))

    def stream(self, indices: Ints, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """The images at `indices` in that order, decoded ahead in worker processes."""
        for decoded in self.decode(indices, batch_size):
            yield self._checked(decoded)

    def decode(self, indices: Ints | None = None, batch_size: int = BATCH_SIZE) -> Iterator[Decoded]:
        """Bytes, labels and unreadable files at `indices` (None: all of them), batch by batch."""
        at = np.arange(len(self)) if indices is None else indices
        return decode_files(self.listing, self.options.prepare, at, batch_size, self.options.workers)

    def describe(self) -> dict[str, Any]:
        prepared = {"resize": self.options.resize, "crop": self.options.crop, "by": self.options.interpolation}
        drawn = {"seed": self.seed, "digest": self.listing.digest(), "skipped": list(self.skipped)}
        return super().describe() | {"prepared": prepared} | drawn

    def _checked(self, decoded: Decoded) -> tuple[Tensor, Tensor]:
        if decoded.failures:
            raise DataError(
                f"unreadable image {decoded.failures[0][1]}; `lipforge data check {self.name}` lists all such files, "
                'FolderOptions(on_error="skip") leaves them out'
            )
        return unit_range(decoded.images.numpy()), decoded.labels


def open_folder(
    path: str | Path, options: FolderOptions | None = None, *, limit: int | None = None, seed: int = 0
) -> FolderData:
    """The images below `path`: one sub-folder per class, empty ones too, labels in the sorted order of their names.

    A folder that holds val/ (or test/) beside train/ is the set of val/, with train/ as its training images. `limit`
    picks at most that many files, at random. With `on_error="skip"` each is decoded once now, to leave out bad ones.
    """
    options = options or FolderOptions()
    root = Path(path)
    if not root.is_dir():
        raise DataError(f"no folder {root}; folder:PATH takes a folder with one sub-folder per class")
    if limit is not None and limit < 1:
        raise InputError(f"limit must be at least 1, got {limit}")
    test, train = find_parts(root)
    if train is not None and not options.class_names:
        # One numbering for both, also where a class is in only one of them.
        options = replace(options, class_names=tuple(sorted({*class_folders(test), *class_folders(train)})))
    listing = list_files(test, options.class_names)
    if options.files is not None:
        listing = read_listing(listing, Path(options.files))
    drawn = None
    if limit is not None and limit < len(listing):
        listing, drawn = listing.pick(shuffled(len(listing), seed)[:limit]), seed
    training = None if train is None else partial(open_folder, train, replace(options, files=None))
    names = listing.class_names
    data = FolderData(f"folder:{path}", listing, options, len(names), names, drawn, find_training=training)
    return _without_unreadable(data) if options.on_error == "skip" else data


def _without_unreadable(data: FolderData) -> FolderData:
    failures: list[tuple[int, str]] = []
    with progress(f"decoding {data.name}", len(data)) as step:
        for decoded in data.decode():
            failures += decoded.failures
            step(len(decoded.labels) + len(decoded.failures), f"{len(failures)} unreadable")
    if not failures:
        return data
    bad = [index for index, _ in failures]
    if len(bad) == len(data):
        raise DataError(f"none of the {len(bad)} images of {data.name} can be read; the first is {failures[0][1]}")
    more = f" and {len(bad) - 3} more" if len(bad) > 3 else ""
    first = "; ".join(reason for _, reason in failures[:3])
    warn(f"left out {len(bad)} unreadable images of {data.name}: {first}{more}", stacklevel=3)
    kept = data.listing.pick(np.delete(np.arange(len(data)), bad))
    return replace(data, listing=kept, skipped=tuple(str(data.listing.path(index)) for index in bad))
