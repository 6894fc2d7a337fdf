"""One way to read images, whatever they come in, and the checks that every reader owes its user."""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeGuard, runtime_checkable

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from lipforge.errors import InputError, ModelError

BATCH_SIZE = 128


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


ImageSource: TypeAlias = Tensor | tuple[Tensor, Tensor] | ImageData | Dataset[Any] | Iterable[Any]
"""Images, an (images, labels) pair, an `ImageData`, a torch `Dataset` or `DataLoader`, or any iterable of batches."""


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
        yield Batch(images, labels, first)
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
    if isinstance(source, Tensor):
        return torch.split(source, batch_size) if len(source) else ()
    if _is_pair(source):
        _check_labels(*source)
        return PairData(*source).batches(batch_size) if len(source[0]) else ()
    if isinstance(source, ImageData):
        return source.batches(batch_size)
    if isinstance(source, Dataset):
        # A generator of its own: a DataLoader draws its seed from the caller's global one otherwise.
        return DataLoader(source, batch_size=batch_size, generator=torch.Generator())
    if isinstance(source, Iterable):
        return source
    raise InputError(f"images must be a tensor, a data set or an iterable of batches, got {type(source).__name__}")


def _check_labels(images: Tensor, labels: Tensor | None) -> None:
    if labels is not None and len(labels) != len(images):
        raise InputError(f"labels must be one per image, got {len(labels)} labels for {len(images)} images")


def _is_pair(source: Any) -> TypeGuard[tuple[Tensor, Tensor]]:
    return isinstance(source, tuple) and len(source) == 2 and all(isinstance(part, Tensor) for part in source)


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
            digest.update(images.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
            digest.update(labels.cpu().to(torch.int64).contiguous().numpy().data)
        return {"name": self.name, "count": len(self), "digest": digest.hexdigest()}


def as_data(data: Any) -> ImageData:
    """`data` if it is a data set, a data set of its own for an (images, labels) pair."""
    if isinstance(data, ImageData):
        return data
    pair = tuple(data) if isinstance(data, list) else data
    if not _is_pair(pair):
        raise InputError(
            f"data must be a data set (load_data, from_arrays) or a pair of tensors (images, labels), "
            f"got {type(data).__name__}"
        )
    images, labels = pair
    if labels.ndim != 1 or labels.is_floating_point() or len(images) != len(labels):
        raise InputError(
            f"labels must be integers (N,), one per image, got {labels.dtype} {tuple(labels.shape)} "
            f"for {len(images)} images"
        )
    if len(images) == 0:
        raise InputError("data must not be empty: it holds no image at all")
    return PairData(images, labels)
