"""Labelled images as other tools keep them: items of torch, torchvision, WebDataset and Hugging Face, NumPy arrays."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, SequentialSampler, Subset

from lipforge.errors import DataError, InputError

Layout = Literal["NCHW", "NHWC"]

LABEL_NAMES = ("label", "labels", "cls")
"""The whole number of an item that is its label, where it has several."""

NUMBERS = (int, np.integer, np.ndarray)

READ_TWICE = 16
"""Items that are read twice, to see whether a data set is random."""

MOST_BYTES = 4 * 2**30
"""The most bytes of images that are read into memory, where a source can only be read in order."""


@dataclass(frozen=True, eq=False)
class MapData:
    """The items of a map-style data set, read by position whenever they are asked for; see `as_data`.

    `collate` is that of a DataLoader which has one of its own. `classes` is 0: only reading all labels would tell.
    """

    items: Any
    name: str
    collate: Callable[[list[Any]], Any] | None = None
    classes: int = 0

    def __len__(self) -> int:
        return len(self.items)

    def batch(self, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        items = [(int(index), self._item(int(index))) for index in indices]
        if self.collate is not None:
            return labelled(self.collate([item for _, item in items]), f"a batch of {self.name}")
        parts = [labelled(item, f"item {index} of {self.name}") for index, item in items]
        return joined(parts, self.name)

    def batches(self, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
        for first in range(0, len(self), batch_size):
            yield self.batch(range(first, min(first + batch_size, len(self))))

    def describe(self) -> dict[str, Any]:
        """Name, count and digests of what is cheap to read: positions and labels that the data set keeps in a list."""
        positions, labels = positions_in(self.items), labels_in(self.items)
        kept = {"positions": positions, "labels": labels}
        digests = {key: hashlib.sha256(repr(value).encode()).hexdigest() for key, value in kept.items() if value}
        return {"name": self.name, "count": len(self), **digests}

    def _item(self, index: int) -> Any:
        try:
            return self.items[index]
        except Exception as error:  # whatever the data set of a user raises
            raise DataError(f"item {index} of {self.name} cannot be read: {type(error).__name__}: {error}") from error


def map_data(items: Any, collate: Callable[[list[Any]], Any] | None = None) -> MapData:
    """The data set over map-style `items`; one that is random, or has no labels, is refused."""
    data = MapData(items, name_of(items), collate)
    first = range(min(READ_TWICE, len(data)))
    if not first:
        raise InputError("data must not be empty: it holds no image at all")
    if not torch.equal(data.batch(first)[0], data.batch(first)[0]):
        raise InputError(
            f"{data.name} gives another image when it is asked again, as a random transform does; take transforms "
            "that are not random, such as ToTensor and CenterCrop"
        )
    return data


def check_loader(loader: DataLoader[Any]) -> None:
    """Raise unless a loader gives every image of its data set once, so that the set in its own order stands for it."""
    sampler = loader.sampler
    usual = isinstance(sampler, SequentialSampler) or (
        isinstance(sampler, RandomSampler)
        and not sampler.replacement
        and sampler.num_samples == len(sampler.data_source)
    )
    if not usual or loader.batch_size is None:
        raise InputError(
            f"data is a DataLoader with a {type(sampler).__name__ if not usual else 'batch sampler'} of its own, whose "
            "images cannot be read by position; pass its data set, or torch.utils.data.Subset(dataset, indices)"
        )


def is_map_style(data: Any) -> bool:
    """Whether `data` has items by position: a data set, not a list of batches."""
    plain = isinstance(data, list | tuple | str | bytes | Mapping | Tensor | np.ndarray | IterableDataset | DataLoader)
    return not plain and hasattr(data, "__getitem__") and hasattr(data, "__len__")


def read_whole(items: Iterable[Any], name: str) -> tuple[Tensor, Tensor]:
    """All images and labels of a source that can only be read in order, samples or batches, in memory."""
    parts, size = [], 0
    for number, item in enumerate(items):
        parts.append(labelled(item, f"item {number} of {name}"))
        size += parts[-1][0].nbytes
        if size > MOST_BYTES:
            raise InputError(
                f"{name} can only be read in order, and it holds more than {MOST_BYTES / 2**30:g} GiB of images; take "
                "fewer of them (itertools.islice, or .slice of a WebDataset), or pass a data set with items by position"
            )
    if not parts:
        raise InputError("data must not be empty: it holds no image at all")
    return joined(parts, name)


def joined(parts: Sequence[tuple[Tensor, Tensor]], name: str) -> tuple[Tensor, Tensor]:
    """Images and labels of several items, which must be of one size."""
    shapes = sorted({tuple(images.shape[1:]) for images, _ in parts})
    if len(shapes) > 1:
        raise DataError(f"{name} has images of different sizes, {shapes[:3]}; resize and crop them in its transform")
    return torch.cat([images for images, _ in parts]), torch.cat([labels for _, labels in parts])


def labelled(item: Any, where: str) -> tuple[Tensor, Tensor]:
    """Images (N, C, H, W) and labels (N,) of an item: one image or a batch, as (image, label, ...) or a mapping."""
    image, label = _chosen(item, where) if isinstance(item, Mapping) else _first_two(item, where)
    images = _images(image)
    if images is None:
        raise InputError(f"{where} must start with an image (a tensor, an array or a PIL image), got {_kind(image)}")
    labels = torch.as_tensor(label).reshape(-1) if _is_label(label) else None
    if labels is None or len(labels) != len(images):
        raise InputError(f"{where} must have a whole number as the label of each image, got {_kind(label)}")
    return images, labels.long()


def is_whole(labels: Tensor) -> bool:
    """Whether labels are whole numbers, of any type: a bool may be a mask."""
    return not (labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool)


def _first_two(item: Any, where: str) -> tuple[Any, Any]:
    if not isinstance(item, tuple | list) or len(item) < 2:
        raise InputError(f"{where} has no label: data must give (image, label), got {_kind(item)}")
    return item[0], item[1]


def _chosen(item: Mapping[str, Any], where: str) -> tuple[Any, Any]:
    """The one image of a mapping and its one label."""
    images = [key for key, value in item.items() if _images(value) is not None]
    labels = [key for key, value in item.items() if _is_label(value)]
    labels = [key for key in labels if key in LABEL_NAMES] if len(labels) > 1 else labels
    if len(images) != 1 or len(labels) != 1:
        raise InputError(
            f"{where} must have one image and one label, got {', '.join(f'{key} {_kind(item[key])}' for key in item)}; "
            "for a Hugging Face data set say which by lf.from_hugging_face(ds, image=..., label=...)"
        )
    return item[images[0]], item[labels[0]]


def _is_label(value: Any) -> bool:
    """Whether a value is a whole number, or one for each image of a batch."""
    if isinstance(value, list):
        return bool(value) and all(isinstance(each, int) and not isinstance(each, bool) for each in value)
    if isinstance(value, Tensor):
        return is_whole(value) and value.ndim < 2
    return np.ndim(value) < 2 and np.asarray(value).dtype.kind in "iu" if isinstance(value, NUMBERS) else False


def _images(value: Any) -> Tensor | None:
    """Images (N, C, H, W) of one image or a batch; None where it is neither."""
    if isinstance(value, Image.Image):
        value = np.asarray(value if value.mode == "L" else value.convert("RGB"))
    if isinstance(value, Tensor) and value.is_floating_point():
        return value.reshape(-1, *value.shape[-3:]) if value.ndim in (3, 4) else None
    array = value.cpu().numpy() if isinstance(value, Tensor) else value
    if not isinstance(array, np.ndarray) or array.ndim not in (2, 3, 4) or array.dtype.kind not in "fu":
        return None
    return unit_range(channels_first(array if array.ndim == 4 else array[None]))


def array_images(images: npt.NDArray[Any]) -> Tensor:
    """Images (N, C, H, W) as float32 of an array (N, H, W), NHWC or NCHW of bytes, or floats."""
    if images.dtype != np.uint8 and images.dtype.kind != "f":
        raise InputError(f"images must be uint8, or floats in [0, 1], got {images.dtype}")
    return unit_range(channels_first(images))


def channels_first(images: npt.NDArray[Any], layout: Layout | None = None, name: str = "the array") -> npt.NDArray[Any]:
    """Images (N, C, H, W) of those in some layout, which is read from the axis of size 1 or 3 unless it is named."""
    if images.ndim == 3:
        return images[:, None]
    if images.ndim != 4:
        raise InputError(f"images of {name} must have the shape (N, H, W), NHWC or NCHW, got {images.shape}")
    if layout is None:
        first, last = images.shape[1] in (1, 3), images.shape[3] in (1, 3)
        if first == last:
            raise InputError(
                f"images of {name} have the shape {images.shape}: say where the channels are, "
                'from_arrays(..., layout="NCHW") or "NHWC"'
            )
        layout = "NCHW" if first else "NHWC"
    return images if layout == "NCHW" else images.transpose(0, 3, 1, 2)


def unit_range(images: npt.NDArray[Any]) -> Tensor:
    """Bytes divided by 255, floats as they are, as float32; `images` must be a fresh array, it may be used as it is."""
    if images.dtype == np.uint8:
        # NumPy, not torch, makes the float array: glibc's aligned allocation, which torch uses, cannot always take back
        # a freed block of the same size, and memory then grows by a batch at a time.
        return torch.from_numpy(np.true_divide(np.ascontiguousarray(images), np.float32(255), dtype=np.float32))
    return torch.from_numpy(np.ascontiguousarray(images, dtype=np.float32))


def name_of(items: Any) -> str:
    """The name of the data set's class, with its split where it says which.

    >>> name_of(Subset([1, 2], [0]))
    'list/subset'
    """
    if isinstance(items, Subset):
        return f"{name_of(items.dataset)}/subset"
    train, split = getattr(items, "train", None), getattr(items, "split", None)
    part = ("train" if train else "test") if isinstance(train, bool) else None if split is None else str(split)
    return type(items).__name__ + (f":{part}" if part else "")


def positions_in(items: Any) -> list[int] | None:
    """Which items of the set below a subset has."""
    return [int(index) for index in items.indices] if isinstance(items, Subset) else None


def labels_in(items: Any) -> list[int] | None:
    """The labels that a data set, or the one below a subset, keeps in a list; None where only its items would tell."""
    below = items.dataset if isinstance(items, Subset) else items
    labels = getattr(below, "targets", getattr(below, "labels", None))
    return np.asarray(labels).tolist() if isinstance(labels, list | Tensor | np.ndarray) else None


def _kind(value: Any) -> str:
    """A value as an error names it.

    >>> _kind(torch.zeros(3)), _kind("cat")
    ('Tensor (3,)', 'str')
    """
    shape = f" {tuple(value.shape)}" if hasattr(value, "shape") else ""
    return type(value).__name__ + shape
