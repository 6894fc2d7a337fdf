"""Which images are certified."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from lipforge.batching import ImageData, check_images
from lipforge.errors import InputError
from lipforge.pairs import as_data
from lipforge.runs.identity import data_identity

Labelled = ImageData | tuple[Tensor, Tensor]
"""A data set with labels, or an (images, labels) pair."""


@dataclass(frozen=True)
class Source:
    """Every `skip`-th image of `data`, at most `limit` of them, by position in `data`."""

    data: Labelled
    skip: int = 1
    limit: int | None = None

    def __post_init__(self) -> None:
        if self.skip < 1 or (self.limit is not None and self.limit < 1):
            raise InputError(f"skip and limit must be at least 1, got skip={self.skip}, limit={self.limit}")
        if len(self.positions) == 0:
            raise InputError("data must not be empty")

    @property
    def images(self) -> ImageData:
        """The data as a data set."""
        return as_data(self.data)

    @property
    def name(self) -> str:
        return self.images.name

    @property
    def positions(self) -> range:
        """The positions in `data` of the images to certify."""
        return range(0, len(self.images), self.skip)[: self.limit]

    def read(self, positions: Sequence[int]) -> tuple[Tensor, Tensor]:
        """The images and labels at these positions of the data set."""
        images, labels = self.images.batch(list(positions))
        check_images(images, first=positions[0])
        return images, labels

    def describe(self) -> dict[str, Any]:
        """What the data are, and which of their images."""
        return {**data_identity(self.images), "skip": self.skip, "images": len(self.positions)}
