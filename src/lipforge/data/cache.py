"""The cache folder: one compact, checksummed file per split, and a lock so that processes do not clash."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from lipforge.data.arrays import ArrayData, check_labels
from lipforge.data.base import Bytes, Ints, content_digest
from lipforge.data.known import KnownSet, Split
from lipforge.errors import DataError, InputError
from lipforge.records import write_whole


def cache_folder() -> Path:
    """LIPFORGE_CACHE, else XDG_CACHE_HOME/lipforge, else ~/.cache/lipforge; not made here."""
    if own := os.environ.get("LIPFORGE_CACHE"):
        return Path(own).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "lipforge"


def data_folder() -> Path:
    """The part of the cache folder that holds data sets, made if need be."""
    folder = cache_folder() / "data"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"the cache folder {folder} cannot be made ({error.strerror}); set LIPFORGE_CACHE") from None
    return folder


def cached_path(known: KnownSet, split: Split) -> Path:
    """Where the compact file of a split is, or would be."""
    return cache_folder() / "data" / f"{known.name}-{split}.safetensors"


def write_cached(known: KnownSet, split: Split, images: Bytes, labels: Ints, source: str) -> None:
    """Check a split that was just read, and keep it."""
    digest = checked_digest(known, split, images, labels, source)
    note = {"digest": digest, "source": source}
    content = save({"images": np.ascontiguousarray(images), "labels": labels}, metadata=note)
    try:
        write_whole(cached_path(known, split), content)
    except OSError as error:
        raise DataError(
            f"{cached_path(known, split)} cannot be written ({error.strerror}); set LIPFORGE_CACHE"
        ) from None


def read_cached(known: KnownSet, split: Split) -> ArrayData | None:
    """The split as it was kept, or None; a damaged file is an error."""
    path = cached_path(known, split)
    if not path.exists():
        return None
    try:
        with safe_open(path, framework="numpy") as file:
            note = file.metadata() or {}
            images, labels = file.get_tensor("images"), file.get_tensor("labels")
    except (SafetensorError, OSError, ValueError) as error:
        raise DataError(f"{path} is damaged ({error}); delete it to have it made again") from None
    expected = known.digests.get(split) or note.get("digest")
    if content_digest([(images, labels)]) != expected:
        raise DataError(f"{path} is damaged (wrong checksum); delete it to have it made again")
    return ArrayData(f"{known.name}:{split}", images, labels, len(known.class_names), known.class_names)


def checked_digest(known: KnownSet, split: Split, images: Bytes, labels: Ints, source: str) -> str:
    """The digest of a split's content, after checking that it is the published one."""
    name = f"{known.name}:{split} from {source}"
    if images.shape != (known.counts[split], *known.image):
        expected = f"{known.counts[split]} images of {known.image}"
        raise DataError(f"{name} must be {expected}, got {len(images)} of {images.shape[1:]}")
    try:
        check_labels(labels, len(known.class_names), name)
    except InputError as error:
        raise DataError(str(error)) from None
    digest = content_digest([(images, labels)])
    expected = known.digests.get(split, digest)
    if digest != expected:
        raise DataError(f"{name} has the wrong checksum {digest[:16]}..., {known.title} has {expected[:16]}...")
    return digest


@contextmanager
def lock(name: str) -> Iterator[None]:
    """Hold a lock of that name in the cache folder; another process waits for it."""
    try:
        import fcntl
    except ImportError:  # no such locks on Windows: files are still written whole, at worst twice
        yield
        return
    with open(data_folder() / f".{name}.lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
