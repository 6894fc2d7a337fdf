"""A plain (images, labels) pair as the data set that evaluations read."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lipforge.batching import BATCH_SIZE, ImageData
from lipforge.errors import InputError


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
        """Images and labels at these positions."""
        at = torch.tensor(indices, device=self.images.device)
        return self.images[at], self.labels[at.to(self.labels.device)]

    def batches(self, batch_size: int = BATCH_SIZE) -> Iterator[tuple[Tensor, Tensor]]:
        """All images and labels in order."""
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
    if not isinstance(data, tuple | list) or len(data) != 2 or not all(isinstance(part, Tensor) for part in data):
        raise InputError(
            f"data must be a data set (load_data, from_arrays) or a pair of tensors (images, labels), "
            f"got {type(data).__name__}"
        )
    images, labels = data
    if labels.ndim != 1 or labels.is_floating_point() or len(images) != len(labels):
        raise InputError(
            f"labels must be integers (N,), one per image, got {labels.dtype} {tuple(labels.shape)} "
            f"for {len(images)} images"
        )
    if len(images) == 0:
        raise InputError("data must not be empty: it holds no image at all")
    return PairData(images, labels)
