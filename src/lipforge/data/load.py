"""A data set from one line of text, and what names such a line may use."""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import cast

from lipforge.data.archive import find_file
from lipforge.data.arrays import ArrayData, from_arrays, read_npy, read_npz
from lipforge.data.base import DataSet
from lipforge.data.cache import cached_path
from lipforge.data.folder import FolderOptions, open_folder
from lipforge.data.hub import AS_IT_IS, open_hub_folder
from lipforge.data.idx import read_idx, read_pair
from lipforge.data.known import CIFAR10_CLASSES, KNOWN, SPLITS, Split, idx_layout
from lipforge.data.sample import COUNT, load_sample
from lipforge.data.sources import load_known
from lipforge.data.split import take
from lipforge.data.workers import Prepare
from lipforge.errors import DataError, InputError

SAMPLE = "cifar10-sample"
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

    `limit` keeps at most that many images: the first, or with a `seed` random ones. A folder is sorted by class, so
    there they are always random. `root` (else LIPFORGE_DATA) is a folder where you keep the published files;
    `download=False` forbids the network. `folder` says how images in files are resized, cropped and skipped.

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
    if kind == "folder":
        return open_folder(_path_in(spec), folder, limit=limit, seed=seed or 0)
    data = _read_path(kind, _path_in(spec), folder) if kind in PATH_KINDS else _read_named(kind, rest, root, download)
    return data if limit is None else take(data, limit, seed)


def list_data() -> list[DataEntry]:
    """Every name that `load_data` knows, and every kind of path."""
    sample = dict.fromkeys(SPLITS, COUNT)
    named = [
        DataEntry(
            known.name,
            known.title,
            known.counts,
            len(known.class_names),
            known.image,
            all(cached_path(known, split).exists() for split in SPLITS),
        )
        for known in KNOWN.values()
    ]
    title = "first images of CIFAR-10, part of lipforge"
    named.append(DataEntry(SAMPLE, title, sample, len(CIFAR10_CLASSES), (3, 32, 32), ready=True))
    return named + [DataEntry(f"{kind}:PATH", holds, {}, None, None, True) for kind, holds in PATH_KINDS.items()]


def get_data(name: str, *, root: str | Path | None = None, download: bool = True) -> DataEntry:
    """Bring a named set into the cache, from your files or the network, and say what is there now."""
    _read_named(name, "", root, download)
    return next(entry for entry in list_data() if entry.name == name)


def _read_named(name: str, split: str, root: str | Path | None, download: bool) -> ArrayData:
    if name not in (*KNOWN, SAMPLE):
        raise InputError(_unknown(name, split))
    if split not in ("", *SPLITS):
        raise InputError(f"'{name}:{split}' names no split of {name}; it has {', '.join(SPLITS)}")
    wanted = cast(Split, split or "test")
    data = load_sample(wanted) if name == SAMPLE else load_known(KNOWN[name], wanted, root=root, download=download)
    if split:
        return data
    training = partial(_read_named, name, "train", root, download)
    return replace(data, name=name, find_training=training)


def _read_path(kind: str, path: str, folder: FolderOptions | None) -> DataSet:
    if kind == "npz":
        return read_npz(path)
    if kind == "npy":
        return read_npy(path)
    if kind == "idx":
        return _read_idx_folder(Path(path), "test")
    prepare = AS_IT_IS if folder is None else Prepare(folder.resize, folder.crop, folder.interpolation)
    return open_hub_folder(path, prepare)


def _read_idx_folder(folder: Path, split: Split) -> ArrayData:
    """A split of four IDX files; the number of classes is one more than the largest label in either split."""
    files = idx_layout(()).files
    found = {part: [find_file(folder, name) for name in files[part]] for part in SPLITS}
    pair = [path for path in found[split] if path is not None]
    if len(pair) < 2:
        raise DataError(f"{folder} must hold {' and '.join(files[split])}, plain or with .gz")
    images, labels = read_pair({str(path): path.read_bytes() for path in pair})
    largest = [int(labels.max(initial=0))]
    largest += [int(read_idx(path.read_bytes(), str(path), axes=1).max()) for _, path in found.values() if path]
    data = from_arrays(images, labels, name=f"idx:{folder}", classes=max(largest) + 1)
    if split == "test" and all(found["train"]):
        return replace(data, find_training=partial(_read_idx_folder, folder, "train"))
    return data if split == "test" else replace(data, name=f"idx:{folder}:train")


def _path_in(spec: str) -> str:
    kind, _, path = spec.partition(":")
    if not path:
        raise InputError(f"'{spec}' lacks a path: {kind}:PATH")
    return str(Path(path).expanduser())


def _unknown(name: str, rest: str) -> str:
    names = [*KNOWN, SAMPLE, *PATH_KINDS]
    near = difflib.get_close_matches(name.lower(), names, n=2, cutoff=0.5)
    hint = f"; did you mean {' or '.join(near)}?" if near else ""
    spec = f"{name}:{rest}" if rest else name
    if Path(spec).is_dir():
        hint = f"; did you mean folder:{spec}?"
    kinds = ", ".join(f"{kind}:PATH" for kind in PATH_KINDS)
    return f"no data set '{name}'{hint} Known names: {', '.join([*KNOWN, SAMPLE])}; or {kinds}"
