"""Which images are certified."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lipforge.batching import ImageData, check_images
from lipforge.errors import InputError

Labelled = ImageData | tuple[Tensor, Tensor]
"""A data set with labels, or an (images, labels) pair."""

SAMPLED = 16
"""Images of a data set that its identity looks at."""


@dataclass(frozen=True)
class Source:
    """Every `skip`-th image of `data`, at most `limit` of them, by position in `data`."""

    data: Labelled
    skip: int = 1
    limit: int | None = None

    def __post_init__(self) -> None:
        if self.skip < 1 or (self.limit is not None and self.limit < 1):
            raise InputError(f"skip and limit must be at least 1, got skip={self.skip}, limit={self.limit}")
        if not isinstance(self.data, ImageData) and not (isinstance(self.data, tuple) and len(self.data) == 2):
            raise InputError("data must be a data set with labels or an (images, labels) pair of tensors")
        if isinstance(self.data, tuple) and len(self.data[0]) != len(self.data[1]):
            raise InputError(f"labels must be one per image, got {len(self.data[1])} for {len(self.data[0])} images")
        if len(self.positions) == 0:
            raise InputError("data must not be empty")

    @property
    def name(self) -> str:
        return self.data.name if isinstance(self.data, ImageData) else "images"

    @property
    def positions(self) -> range:
        """The positions in `data` of the images to certify."""
        size = len(self.data) if isinstance(self.data, ImageData) else len(self.data[0])
        return range(0, size, self.skip)[: self.limit]

    def read(self, positions: Sequence[int]) -> tuple[Tensor, Tensor]:
        """The images and labels at these positions of the data set."""
        if isinstance(self.data, ImageData):
            images, labels = self.data.batch(list(positions))
        else:
            images, labels = (part[torch.as_tensor(list(positions))] for part in self.data)
        check_images(images, first=positions[0])
        return images, labels

    def describe(self) -> dict[str, Any]:
        """Name, which images, what a data set says of itself, and a digest of up to 16 images spread over them."""
        describe = getattr(self.data, "describe", None)
        positions = self.positions
        spread = {round(k * (len(positions) - 1) / max(SAMPLED - 1, 1)) for k in range(SAMPLED)}
        images, labels = self.read([positions[at] for at in sorted(spread)])
        digest = hashlib.sha256(plain_bytes(images))
        digest.update(plain_bytes(labels.to(torch.int64)))
        about = dict(describe()) if callable(describe) else {"name": self.name}
        return {**about, "skip": self.skip, "images": len(positions), "sample": digest.hexdigest()}


def plain_bytes(tensor: Tensor) -> Any:
    """A tensor's bytes in order, for a digest."""
    return tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data
