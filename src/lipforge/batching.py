"""One way to read images, whatever they come in, and the checks that every reader owes its user."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeGuard, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, default_collate

from lipforge.digests import tensor_bytes
from lipforge.errors import InputError, ModelError
from lipforge.sources import array_images, check_loader, is_map_style, is_whole, map_data, name_of, read_whole

BATCH_SIZE = 128
ARRAYS = (Tensor, np.ndarray)


@runtime_checkable
class ImageData(Protocol):
    """A finite, indexable set of labelled images, in memory or on disk."""

    @property
    def name(self) -> str: ...
    @property
    def classes(self) -> int: ...
    def __len__(self) -> int: ...
    def batch(self, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Images (N, C, H, W) in [0, 1] and labels (N,) at these positions."""
        ...

    def batches(self, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """All images and labels in order; a folder decodes ahead in worker processes."""
        ...


Array: TypeAlias = Tensor | npt.NDArray[Any]
ImageSource: TypeAlias = Array | tuple[Array, Array] | ImageData | Dataset[Any] | Iterable[Any]
"""Images, an (images, labels) pair, an `ImageData`, a data set of torch or Hugging Face, a `DataLoader`, or batches."""
LabelledSource: TypeAlias = ImageData | tuple[Array, Array] | Dataset[Any] | Iterable[Any]
"""What `as_data` takes: images with labels."""


class Batch(NamedTuple):
    """Some images, their labels if the source has any, and the index of the first of them."""

    images: Tensor
    labels: Tensor | None
    first: int


def batches(source: ImageSource, batch_size: int = BATCH_SIZE) -> Iterator[Batch]:
    """The images of `source` in order, checked; `batch_size` applies where the source has none of its own."""
    if batch_size < 1:
        raise InputError(f"batch_size must be at least 1, got {batch_size}")
    first = 0
    for item in raw_batches(source, batch_size):
        # As loaders give it: images alone, (images,), or (images, labels, and more).
        images, labels, *_ = (*item, None, None) if isinstance(item, list | tuple) and item else (item, None)
        check_images(images, first=first)
        if len(images) == 0:
            continue
        _check_labels(images, labels)
        yield Batch(images, _as_int64(labels), first)
        first += len(images)
    if first == 0:
        raise InputError("images must not be empty: the source gave no image at all")


def image_count(source: ImageSource) -> int | None:
    """How many images `source` holds, or None where only reading it would tell."""
    if isinstance(source, Peeked):
        return source.count
    if _is_pair(source):
        return len(source[0])
    if isinstance(source, DataLoader):
        source = source.dataset
    if isinstance(source, Tensor | ImageData | Dataset) and hasattr(source, "__len__"):
        return len(source)
    return None


def check_images(images: Any, *, first: int = 0) -> None:
    """Raise unless `images` are a float batch (N, C, H, W) in [0, 1]; `first` numbers them in the message."""
    if not isinstance(images, Tensor):
        raise InputError(f"images must be a tensor (N, C, H, W), got {type(images).__name__}")
    if images.ndim != 4:
        raise InputError(f"images must have the shape (N, C, H, W), got {tuple(images.shape)}")
    if not images.is_floating_point():
        raise InputError(f"images must be floating point in [0, 1], got {images.dtype}; divide bytes by 255")
    if len(images) == 0:
        return
    low, high = (bound.item() for bound in torch.aminmax(images))
    if not (low >= 0 and high <= 1):
        wrong = (~((images >= 0) & (images <= 1))).flatten(1).any(dim=1).nonzero()[0].item()
        way_out = "divide them by 255" if low >= 0 and high > 2 else "put normalisation inside the model"
        way_out = "leave out images with NaN" if low != low else way_out
        raise InputError(
            f"images must lie in [0, 1], got [{low:.3f}, {high:.3f}] (first in image {first + int(wrong)}); {way_out}"
        )


def check_eval(model: nn.Module) -> None:
    """Raise if any part of `model` is in train mode: its batch norms would change with every batch."""
    training = [f"'{name}'" if name else "the model" for name, module in model.named_modules() if module.training]
    if training:
        more = f" (and {len(training) - 1} more)" if len(training) > 1 else ""
        raise ModelError(f"the model must be in eval mode, but {training[0]} is not{more}; call model.eval()")


def device_of(model: nn.Module) -> torch.device:
    """The device of the model's first parameter or buffer; the CPU for a model without either."""
    for tensor in (*model.parameters(), *model.buffers()):
        return tensor.device
    return torch.device("cpu")


@dataclass(frozen=True)
class Peeked:
    """A source whose first batch was read already; it still has all of them, once."""

    first: Any
    rest: Iterator[Any]
    count: int | None

    def __iter__(self) -> Iterator[Any]:
        yield self.first
        yield from self.rest


def peek(source: ImageSource, batch_size: int = BATCH_SIZE) -> tuple[Tensor, ImageSource]:
    """The first image, and a source that still has all of them even if the given one can be read only once."""
    if isinstance(source, Tensor | ImageData) or _is_pair(source):
        return next(batches(source, batch_size)).images[:1], source
    count, raw = image_count(source), iter(raw_batches(source, batch_size))
    first = next(raw, None)
    return next(batches([] if first is None else [first])).images[:1], Peeked(first, raw, count)


def raw_batches(source: ImageSource, batch_size: int) -> Iterable[Any]:
    """The batches of `source` as they come, unchecked."""
    if isinstance(source, np.ndarray):
        source = array_images(source)
    if isinstance(source, Tensor):
        return torch.split(source, batch_size) if len(source) else ()
    if _is_pair(source):
        _check_labels(*source)
        source = tuple(map(_as_tensor, source))
        return PairData(*source).batches(batch_size) if len(source[0]) else ()
    if isinstance(source, ImageData):
        return source.batches(batch_size)
    if isinstance(source, Dataset):
        # A generator of its own: a DataLoader draws its seed from the caller's global one otherwise.
        return DataLoader(source, batch_size=batch_size, generator=torch.Generator())
    if is_map_style(source):
        return as_data(source).batches(batch_size)
    if isinstance(source, Iterable):
        return source
    raise InputError(f"images must be a tensor, a data set or an iterable of batches, got {type(source).__name__}")


def _check_labels(images: Tensor, labels: Tensor | None) -> None:
    if labels is not None and len(labels) != len(images):
        raise InputError(f"labels must be one per image, got {len(labels)} labels for {len(images)} images")


def _is_pair(source: Any) -> TypeGuard[tuple[Any, Any]]:
    """Whether `source` is (images, labels): two tensors, or two arrays."""
    return isinstance(source, tuple) and len(source) == 2 and all(isinstance(part, ARRAYS) for part in source)


@dataclass(frozen=True, eq=False)
class PairData:
    """Images (N, C, H, W) and labels (N,) in memory."""

    images: Tensor
    labels: Tensor
    name: str = "pair"

    @property
    def classes(self) -> int:
        return int(self.labels.max()) + 1

    def __len__(self) -> int:
        return len(self.images)

    def batch(self, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        at = torch.tensor(indices, device=self.images.device)
        return self.images[at], self.labels[at.to(self.labels.device)]

    def batches(self, batch_size: int = BATCH_SIZE) -> Iterator[tuple[Tensor, Tensor]]:
        return zip(torch.split(self.images, batch_size), torch.split(self.labels, batch_size), strict=True)

    def describe(self) -> dict[str, Any]:
        """Name, count and a digest of all images: they are in memory anyway."""
        digest = hashlib.sha256()
        for images, labels in self.batches():
            digest.update(tensor_bytes(images))
            digest.update(tensor_bytes(labels.to(torch.int64)))
        return {"name": self.name, "count": len(self), "digest": digest.hexdigest()}


def as_data(data: Any) -> ImageData:
    """`data` if it is a data set of lipforge, or one over what other tools have.

    Images and labels may be a pair of tensors or NumPy arrays, in memory; a map-style data set (torch, torchvision,
    Hugging Face), whose items are read by position when they are asked for; a DataLoader, which stands for all of its
    data set in its order; or an iterable of samples or batches (WebDataset), which is read into memory once.
    """
    if isinstance(data, ImageData):
        return data
    if isinstance(data, TensorDataset):
        data = data.tensors[:2]
    pair = tuple(data) if isinstance(data, list) else data
    if _is_pair(pair):
        return _pair_data(*map(_as_tensor, pair))
    if isinstance(data, DataLoader) and not isinstance(data.dataset, IterableDataset):
        check_loader(data)
        usual = data.collate_fn is default_collate
        return as_data(data.dataset) if usual else map_data(data.dataset, data.collate_fn)
    if is_map_style(data):
        return map_data(data)
    if isinstance(data, Iterable) and not isinstance(data, (*ARRAYS, Mapping, str)):
        return PairData(*read_whole(data, name_of(data)), name=name_of(data))
    raise InputError(
        f"data must be a data set with labels (load_data, from_arrays; torch, Hugging Face) or a pair (images, labels) "
        f"of tensors or arrays, got {type(data).__name__}"
        + (f" with the splits {', '.join(map(str, data))}: choose one" if isinstance(data, Mapping) else "")
    )


def _pair_data(images: Tensor, labels: Tensor) -> PairData:
    if labels.ndim != 1 or not is_whole(labels) or len(images) != len(labels):
        way_out = "; if False and True are classes 0 and 1, pass them as integers" if labels.dtype == torch.bool else ""
        raise InputError(
            f"labels must be integers (N,), one per image, got {labels.dtype} {tuple(labels.shape)} "
            f"for {len(images)} images{way_out}"
        )
    if len(images) == 0:
        raise InputError("data must not be empty: it holds no image at all")
    return PairData(images, _as_int64(labels))


def _as_int64(labels: Any) -> Any:
    """Labels of any integer type as int64, the one that losses and `gather` take; others as they are."""
    return labels.long() if isinstance(labels, Tensor) and is_whole(labels) else labels


def _as_tensor(array: Any) -> Tensor:
    """A tensor as it is; an array of images as float32 (N, C, H, W), and one of labels (N,) as a copy."""
    if isinstance(array, Tensor):
        return array
    return array_images(array) if array.ndim > 2 else torch.from_numpy(np.array(array))
