"""A data set from one line of text, what names such a line may use, and a report on what a set holds."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from lipforge.batching import BATCH_SIZE
from lipforge.data.arrays import ArrayData, from_arrays, read_npy, read_npz
from lipforge.data.base import DataSet, Ints, content_digest
from lipforge.data.fetch import cached_path, find_file, load_known
from lipforge.data.folder import FolderData, FolderOptions, open_folder
from lipforge.data.formats import read_idx, read_pair
from lipforge.data.hub import AS_IT_IS, open_hub_folder
from lipforge.data.known import KNOWN, SAMPLE, SPLITS, Split, load_sample
from lipforge.data.subsets import take
from lipforge.errors import DataError, InputError, suggest
from lipforge.progress import progress

PATH_KINDS = {
    "folder": "image folder, one sub-folder per class; val/ beside train/ is understood",
    "npz": "NumPy archive with the arrays images and labels",
    "npy": "two NumPy files, npy:IMAGES,LABELS, or a folder with images.npy and labels.npy",
    "idx": "folder with your own files in MNIST's format",
    "hub": "folder written by a Hugging Face data set's save_to_disk",
}


@dataclass(frozen=True)
class DataEntry:
    """One line of `list_data`. `ready` says that loading it needs neither the network nor your files."""

    name: str
    holds: str
    counts: Mapping[Split, int]
    classes: int | None
    image: tuple[int, ...] | None
    ready: bool


@dataclass(frozen=True)
class DataReport:
    """What `check_data` saw in the `count` images it could read; `low` and `high` are extreme values in [0, 1]."""

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


def load_data(
    spec: str,
    *,
    limit: int | None = None,
    seed: int | None = None,
    root: str | Path | None = None,
    folder: FolderOptions | None = None,
    download: bool = True,
) -> DataSet:
    """The data set that `spec` names.

    A name, with or without a split: `cifar10`, `cifar10:train`, `cifar100`, `mnist`, `fashion-mnist`,
    `cifar10-sample`. Or a kind and a path: `folder:PATH`, `npz:PATH`, `npy:IMAGES,LABELS`, `idx:PATH`, `hub:PATH`.
    A name without a split is the test set, which also knows its training images: `split` draws from those.
    `limit` keeps at most that many images: the first, or random ones with a `seed` and in folders, which are sorted by
    class. `root` (else LIPFORGE_DATA) is where you keep published files; `download=False` forbids the network.

    >>> data = load_data("cifar10-sample", limit=100)
    >>> len(data), data.classes, data.class_names[data[0][1]]
    (100, 10, 'cat')
    """
    if not isinstance(spec, str):
        raise InputError(
            f"spec must name a data set, got {type(spec).__name__}; for arrays and tensors use from_arrays, "
            "or pass a pair (images, labels) where data is asked for"
        )
    kind, _, rest = spec.partition(":")
    if kind in PATH_KINDS and not rest:
        raise InputError(f"'{spec}' lacks a path: {kind}:PATH")
    path = str(Path(rest).expanduser())
    if kind == "folder":
        return open_folder(path, folder, limit=limit, seed=seed or 0)
    data: DataSet
    if kind == "hub":
        data = open_hub_folder(path, AS_IT_IS if folder is None else folder.prepare)
    elif kind in PATH_KINDS:
        data = {"npz": read_npz, "npy": read_npy, "idx": _read_idx_folder}[kind](path)
    else:
        data = _read_named(kind, rest, root, download)
    return data if limit is None else take(data, limit, seed)


def list_data() -> list[DataEntry]:
    """Every name that `load_data` knows, and every kind of path."""
    entries = []
    for known in (*KNOWN.values(), SAMPLE):
        ready = known is SAMPLE or all(cached_path(known, split).exists() for split in SPLITS)
        entries.append(DataEntry(known.name, known.title, known.counts, len(known.class_names), known.image, ready))
    return entries + [DataEntry(f"{kind}:PATH", holds, {}, None, None, True) for kind, holds in PATH_KINDS.items()]


def get_data(name: str, *, root: str | Path | None = None, download: bool = True) -> DataEntry:
    """Bring a named set into the cache, from your files or the network, and say what is there now."""
    _read_named(name, "", root, download)
    return next(entry for entry in list_data() if entry.name == name)


def check_data(
    spec: str, *, root: str | Path | None = None, folder: FolderOptions | None = None, download: bool = True
) -> DataReport:
    """Decode every image that `spec` names and report counts, range, identity and files that cannot be read."""
    if spec.startswith("folder:"):
        # Skipping would hide what this is asked to find.
        folder = replace(folder or FolderOptions(), on_error="raise")
    data = load_data(spec, root=root, folder=folder, download=download)
    seen = _Seen(np.zeros(data.classes, dtype=np.int64))
    digest = content_digest(_look(data, seen))
    if not seen.shapes:
        raise DataError(f"none of the {len(seen.unreadable)} images of {spec} can be read: {seen.unreadable[0]}")
    if len(seen.shapes) > 1:
        raise DataError(f"{spec} has images of different sizes, {sorted(seen.shapes)}; set resize and crop")
    labels = int(seen.histogram.sum()), data.classes, data.class_names, tuple(seen.histogram.tolist())
    pixels = seen.shapes.pop(), seen.low, seen.high
    return DataReport(spec, *labels, *pixels, digest, tuple(seen.unreadable))


def _read_named(name: str, split: str, root: str | Path | None, download: bool) -> ArrayData:
    if name not in (*KNOWN, SAMPLE.name):
        raise InputError(_unknown(name, split))
    if split not in ("", *SPLITS):
        raise InputError(f"'{name}:{split}' names no split of {name}; it has {', '.join(SPLITS)}")
    wanted = cast(Split, split or "test")
    data = load_sample(wanted) if name == SAMPLE.name else load_known(KNOWN[name], wanted, root=root, download=download)
    if split:
        return data
    training = partial(_read_named, name, "train", root, download)
    return replace(data, name=name, find_training=training)


def _read_idx_folder(path: str, split: Split = "test") -> ArrayData:
    """A split of four IDX files; the number of classes is one more than the largest label in either split."""
    folder = Path(path)
    files = KNOWN["mnist"].layouts[0].files
    found = {part: [find_file(folder, name) for name in files[part]] for part in SPLITS}
    pair = [path for path in found[split] if path is not None]
    if len(pair) < 2:
        raise DataError(f"{folder} must hold {' and '.join(files[split])}, plain or with .gz")
    images, labels = read_pair({str(path): path.read_bytes() for path in pair})
    largest = [int(labels.max(initial=0))]
    largest += [int(read_idx(path.read_bytes(), str(path), axes=1).max()) for _, path in found.values() if path]
    data = from_arrays(images, labels, name=f"idx:{folder}", classes=max(largest) + 1)
    if split == "test" and all(found["train"]):
        return replace(data, find_training=partial(_read_idx_folder, path, "train"))
    return data if split == "test" else replace(data, name=f"idx:{folder}:train")


def _unknown(name: str, rest: str) -> str:
    names = [*KNOWN, SAMPLE.name]
    spec = f"{name}:{rest}" if rest else name
    hint = suggest(name, [*names, *PATH_KINDS], count=2).replace("'", "")
    if Path(spec).is_dir():
        hint = f"; did you mean folder:{spec}?"
    kinds = ", ".join(f"{kind}:PATH" for kind in PATH_KINDS)
    return f"no data set '{name}'{hint} Known names: {', '.join(names)}; or {kinds}"


@dataclass
class _Seen:
    histogram: Ints
    shapes: set[tuple[int, ...]] = field(default_factory=set)
    low: float = np.inf
    high: float = -np.inf
    unreadable: list[str] = field(default_factory=list)


def _look(data: DataSet, seen: _Seen) -> Iterator[tuple[npt.NDArray[Any], Ints]]:
    with progress(f"checking {data.name}", len(data)) as step:
        for images, labels, failures in _read(data):
            seen.unreadable += failures
            step(len(labels) + len(failures), f"{len(seen.unreadable)} unreadable" if seen.unreadable else "")
            if len(labels) == 0:
                continue
            scale = 255 if images.dtype == np.uint8 else 1
            seen.shapes.add(images.shape[1:])
            seen.histogram += np.bincount(labels, minlength=len(seen.histogram))
            seen.low = min(seen.low, float(images.min()) / scale)
            seen.high = max(seen.high, float(images.max()) / scale)
            yield images, labels


def _read(data: DataSet) -> Iterator[tuple[npt.NDArray[Any], Ints, list[str]]]:
    """Images as they are kept (bytes or float32), labels, and what could not be read, batch by batch."""
    if isinstance(data, FolderData):
        for decoded in data.decode():
            yield decoded.images.numpy(), decoded.labels.numpy(), [reason for _, reason in decoded.failures]
        return
    floats = isinstance(data, ArrayData) and data.images.dtype != np.uint8
    for images, labels in data.batches(BATCH_SIZE):
        # A byte k comes as k / 255, which times 255 rounds to k again.
        kept = images.numpy() if floats else images.mul(255).round().byte().numpy()
        yield kept, labels.numpy(), []
