"""CIFAR-10-C and ImageNet-C from disk, in the layouts in which they are published."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lipforge.batching import ImageData
from lipforge.corruptions.settings import CORRUPTIONS, SEVERITIES
from lipforge.data.arrays import NUMPY
from lipforge.data.base import Ints, reading
from lipforge.data.folder import FolderData
from lipforge.data.images import Prepare, UnreadableImage, read_image
from lipforge.data.subsets import View
from lipforge.errors import DataError
from lipforge.runs import Shard
from lipforge.sources import unit_range

SAME_ORDER = 0.3
"""The least median correlation of corrupted and clean images; that of images which do not belong together is near 0."""
CIFAR = {10: "CIFAR-10-C files", 100: "CIFAR-100-C files"}
"""What files in this layout are called, by the number of classes."""
FEWEST = 8
"""Fewer images say nothing about their order."""


class Published(Protocol):
    """Corrupted images on disk."""

    @property
    def source(self) -> str: ...
    def describe(self) -> dict[str, Any]: ...
    def images(self, corruption: str, severity: int, shard: Shard) -> Tensor:
        """The corrupted images of the clean ones in a shard."""
        ...


def open_published(
    folder: str | Path, data: ImageData, corruptions: Sequence[str], severities: Sequence[int]
) -> Published:
    """The files in `folder`, checked, for the clean images of `data`: CIFAR-10-C (NAME.npy and labels.npy) or
    ImageNet-C (NAME/SEVERITY/CLASS/FILE, also below blur/, digital/, noise/ and weather/)."""
    root = Path(folder)
    if not root.is_dir():
        raise DataError(f"published must name the folder of CIFAR-10-C or ImageNet-C, got {folder}, which is no folder")
    if (root / "labels.npy").exists():
        return _open_arrays(root, data, corruptions)
    if any(_folder_of(root, name) for name in CORRUPTIONS):
        return _open_folders(root, data, corruptions, severities)
    raise DataError(
        f"{root} is neither CIFAR-10-C (labels.npy, gaussian_noise.npy, ...) nor ImageNet-C "
        "(gaussian_noise/1/n01440764/*.JPEG); corruptions are made on the fly without files"
    )


@dataclass(frozen=True)
class CifarFiles:
    """One array per corruption: `per_severity` images for severity 1, then for 2, ...; `places` has for each clean
    image of the data its position in such a block."""

    root: Path
    labels: Ints = field(repr=False)
    places: Ints = field(repr=False)
    per_severity: int
    classes: int

    @property
    def source(self) -> str:
        return CIFAR.get(self.classes, "files in CIFAR-10-C's layout")

    def describe(self) -> dict[str, Any]:
        """The digest of the labels and of a few images of each file: all of them would take as long as the work."""
        digest = hashlib.sha256(self.labels.astype("<i8").tobytes())
        for path in sorted(self.root.glob("*.npy")):
            array = _array(path)
            digest.update(path.name.encode() + np.ascontiguousarray(array[:: max(1, len(array) // 50)]).tobytes())
        return {"layout": "cifar10-c", "digest": digest.hexdigest()}

    def images(self, corruption: str, severity: int, shard: Shard) -> Tensor:
        path = self.root / f"{corruption}.npy"
        at = self.places[shard.ids.cpu().numpy()]
        if (found := self.labels[at].tolist()) != shard.y.tolist():
            wrong = next(place for place, (a, b) in enumerate(zip(found, shard.y.tolist(), strict=True)) if a != b)
            raise DataError(
                f"{self.root / 'labels.npy'} must have the labels of the data in its order, got {found[wrong]} for "
                f"image {int(at[wrong])}, which has the label {int(shard.y[wrong])}; give the clean test set as data"
            )
        images = unit_range(np.moveaxis(np.asarray(_array(path)[(severity - 1) * self.per_severity + at]), 3, 1))
        _check_like(images, shard.x, path, severity)
        return images.to(shard.x.device)


@dataclass(frozen=True)
class ImageNetFiles:
    """One file per corruption, severity and clean image of `data`, with the clean file's class and name."""

    root: Path
    data: FolderData

    @property
    def source(self) -> str:
        return "ImageNet-C files"

    def describe(self) -> dict[str, Any]:
        return {"layout": "imagenet-c", "folder": self.root.name}

    def images(self, corruption: str, severity: int, shard: Shard) -> Tensor:
        folder = _folder_of(self.root, corruption)
        assert folder is not None  # open_published has looked
        paths = [self.path(folder, severity, index) for index in shard.ids.tolist()]
        try:
            images = [torch.from_numpy(read_image(path, Prepare())) for path in paths]
        except UnreadableImage as error:
            raise DataError(f"unreadable image {error}; is the download complete?") from None
        wrong = next((path for path, one in zip(paths, images, strict=True) if one.shape != shard.x.shape[1:]), None)
        if wrong is not None:
            raise DataError(
                f"images of ImageNet-C must have the size of the clean ones, {_size(shard.x.shape)}, got {wrong}; set "
                "crop to the files' size (they are published with 224 pixels)"
            )
        found = unit_range(torch.stack(images).numpy())
        _check_like(found, shard.x, folder, severity)
        return found.to(shard.x.device)

    def path(self, folder: Path, severity: int, index: int) -> Path:
        return folder / str(severity) / self.data.listing.path(index).relative_to(self.data.listing.root)


def _open_arrays(root: Path, data: ImageData, corruptions: Sequence[str]) -> CifarFiles:
    labels = _array(root / "labels.npy")
    blocks = len(SEVERITIES)
    if labels.ndim != 1 or labels.dtype.kind not in "iu" or not len(labels) or len(labels) % blocks:
        raise DataError(
            f"{root / 'labels.npy'} must hold whole numbers (N,), five times the labels of the test set, got "
            f"{labels.dtype} {labels.shape}"
        )
    count = len(labels) // blocks
    labels = np.asarray(labels, np.int64)
    if (labels.reshape(blocks, count) != labels[:count]).any():
        raise DataError(f"{root / 'labels.npy'} must repeat the same labels for each of the five severities in order")
    for name in corruptions:
        _check_array(root / f"{name}.npy", len(labels))
    below, places = (data.data, data.indices) if isinstance(data, View) else (data, np.arange(len(data)))
    if len(below) != count:
        raise DataError(
            f"data must be the test set that {root} was made from ({count:,} images), whole or limited to some of its "
            f"images, got {data.name} of {len(below):,}"
        )
    return CifarFiles(root, labels[:count], places, count, data.classes)


def _check_array(path: Path, count: int) -> None:
    if not path.exists():
        raise DataError(f"no file {path}; name only the corruptions that are there (--corruptions)")
    array = _array(path)
    if array.dtype != np.uint8 or array.ndim != 4 or array.shape[3] not in (1, 3) or len(array) != count:
        raise DataError(
            f"{path} must hold bytes (N, H, W, C), one image per label of labels.npy ({count:,}), got {array.dtype} "
            f"{array.shape}"
        )


def _open_folders(root: Path, data: ImageData, corruptions: Sequence[str], severities: Sequence[int]) -> ImageNetFiles:
    if not isinstance(data, FolderData):
        raise DataError(
            f"data must be an image folder for ImageNet-C, whose files are found by name, got {data.name}; give the "
            "validation images as folder:PATH"
        )
    found = ImageNetFiles(root, data)
    for name in corruptions:
        folder = _folder_of(root, name)
        if folder is None:
            raise DataError(f"no folder {name} in {root}; name only the corruptions that are there (--corruptions)")
        for severity in severities:
            # The last one too: an archive that was cut short lacks the end.
            for index in (0, len(data) - 1):
                if not (path := found.path(folder, severity, index)).exists():
                    raise DataError(f"no file {path}; ImageNet-C must have the clean images' classes and file names")
    return found


def _folder_of(root: Path, corruption: str) -> Path | None:
    """The folder of a corruption, in `root` or in one of the folders of its archives."""
    places = [root / corruption, *(root / group / corruption for group in ("blur", "digital", "noise", "weather"))]
    return next((place for place in places if place.is_dir()), None)


def _array(path: Path) -> npt.NDArray[Any]:
    """The array in a file, which stays on disk; pickled objects are refused."""
    with reading(path, f"{NUMPY} without pickled objects"):
        found: npt.NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    return found


def _check_like(images: Tensor, clean: Tensor, path: Path, severity: int) -> None:
    """Raise unless corrupted images have the size of the clean ones, and look like them."""
    if images.shape != clean.shape:
        raise DataError(f"{path} must have images of the data's size, {_size(clean.shape)}, got {_size(images.shape)}")
    first, second = (
        (x - x.mean(dim=1, keepdim=True)) for x in (images.flatten(1).double(), clean.cpu().flatten(1).double())
    )
    sizes = first.norm(dim=1) * second.norm(dim=1)
    alike = float(((first * second).sum(dim=1) / sizes.clamp_min(1e-12)).median())
    if len(images) >= FEWEST and alike < SAME_ORDER:
        raise DataError(
            f"{path} must have the images in the order of the data, severity by severity; at severity {severity} its "
            f"images do not look like the clean ones (median correlation {alike:.2f}): it is in another order"
        )


def _size(shape: Sequence[int]) -> str:
    return f"{shape[-3]} x {shape[-2]} x {shape[-1]}"
