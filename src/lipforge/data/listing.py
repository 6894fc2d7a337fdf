"""Which files an image folder holds, kept so small that a million of them fit in a worker's memory."""

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from lipforge.data.base import Ints
from lipforge.errors import DataError

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".ppm", ".pgm", ".tif", ".tiff", ".webp")
TEST_FOLDERS = ("val", "validation", "test")


@dataclass(frozen=True, eq=False)
class Listing:
    """Image files below `root`, each in the sub-folder of its class.

    File names are one array of bytes: a list of a million Python strings is copied into every worker process
    as its reference counts change, and memory then grows while images stream.
    """

    root: Path
    class_names: tuple[str, ...]
    names: npt.NDArray[np.bytes_]
    labels: Ints

    def __len__(self) -> int:
        return len(self.labels)

    def path(self, index: int) -> Path:
        """The file of image `index`."""
        return Path(self.root, self.class_names[self.labels[index]], os.fsdecode(self.names[index].item()))

    def pick(self, indices: Ints) -> "Listing":
        """The files at `indices`, in that order."""
        return Listing(self.root, self.class_names, self.names[indices], self.labels[indices])

    def digest(self) -> str:
        """SHA-256 over the names and labels in order: the same for a copy of the folder elsewhere."""
        text = hashlib.sha256("\0".join(self.class_names).encode(errors="surrogateescape"))
        text.update(b"\0".join(self.names.tolist()))
        text.update(self.labels.astype("<i8").tobytes())
        return text.hexdigest()


def list_files(root: Path, class_names: tuple[str, ...] = ()) -> Listing:
    """Every image file in the sub-folders of `root`, by class and name; a sub-folder without any keeps its label."""
    found = class_folders(root)
    if not found:
        raise DataError(f"{root} has no sub-folders; an image folder has one per class, as in {root}/n01440764/*.JPEG")
    unknown = sorted(set(found) - set(class_names))
    if class_names and unknown:
        raise DataError(f"{root} has the sub-folder '{unknown[0]}', which class_names does not name")
    class_names = class_names or found
    names: list[bytes] = []
    labels: list[int] = []
    for label, folder in enumerate(class_names):
        files = _image_files(root / folder)
        names += files
        labels += [label] * len(files)
    if not names:
        raise DataError(f"no images in the {len(found)} sub-folders of {root}; looked for {', '.join(SUFFIXES)}")
    return Listing(root, class_names, np.array(names), np.array(labels, dtype=np.int64))


def class_folders(root: Path) -> tuple[str, ...]:
    """The names of the sub-folders of `root`, sorted."""
    return tuple(sorted(entry.name for entry in root.iterdir() if entry.is_dir() and not entry.name.startswith(".")))


def read_listing(listing: Listing, path: Path) -> Listing:
    """The files that a text file names, one "class/file" per line, in its order."""
    try:
        wanted = [line.strip() for line in path.read_text().splitlines() if line.strip()]
    except OSError as error:
        raise DataError(f"the list of files {path} cannot be read ({error.strerror})") from None
    pairs = zip(listing.labels.tolist(), listing.names.tolist(), strict=True)
    known = {f"{listing.class_names[label]}/{os.fsdecode(name)}": at for at, (label, name) in enumerate(pairs)}
    missing = [name for name in wanted if name not in known]
    if len(set(wanted)) < len(wanted):
        raise DataError(f"{path} lists {max(wanted, key=wanted.count)} more than once")
    if missing or not wanted:
        example = f", for example {missing[0]}" if missing else ""
        raise DataError(f"{path} lists {len(wanted)} files, {len(missing)} of them not in {listing.root}{example}")
    return listing.pick(np.array([known[name] for name in wanted], dtype=np.int64))


def find_parts(root: Path) -> tuple[Path, Path | None]:
    """`root` itself and None, or its val/ (or test/) and train/ where it holds these, as ImageNet's own folder does."""
    parts = [name for name in ("train", *TEST_FOLDERS) if _has_folders(root / name)]
    if not parts:
        return root, None
    if parts == ["train"]:
        raise DataError(f"{root} holds train/ but no val/; name the one you mean: folder:{root / 'train'}")
    test = next(name for name in TEST_FOLDERS if name in parts)
    return root / test, root / "train" if "train" in parts else None


def _has_folders(folder: Path) -> bool:
    return folder.is_dir() and any(entry.is_dir() for entry in folder.iterdir())


def _image_files(folder: Path) -> list[bytes]:
    """Image files anywhere below `folder`, as sorted paths relative to it."""
    files: list[str] = []
    for parent, _, names in os.walk(folder, followlinks=True):
        relative = os.path.relpath(parent, folder)
        inside = "" if relative == "." else f"{relative}/"
        # Files such as "._n01440764_36.JPEG" are a Mac's notes on the image, not the image.
        files += [f"{inside}{name}" for name in names if name.lower().endswith(SUFFIXES) and not name.startswith(".")]
    return [os.fsencode(name) for name in sorted(files)]
