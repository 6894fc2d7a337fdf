"""Images and labels in memory, in the form that training reads."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from lipforge.batching import check_images
from lipforge.errors import InputError


class ImagePair:
    """Images and labels in memory as an `ImageData`."""

    name = "tensors"

    def __init__(self, images: Tensor, labels: Tensor) -> None:
        check_images(images)
        if labels.shape != (len(images),):
            raise InputError(f"labels must be one per image, got {tuple(labels.shape)} for {len(images)} images")
        self.images, self.labels, self.classes = images, labels, int(labels.max()) + 1

    def __len__(self) -> int:
        return len(self.images)

    def batch(self, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        index = torch.as_tensor(indices)
        return self.images[index], self.labels[index]

    def batches(self, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
        return zip(torch.split(self.images, batch_size), torch.split(self.labels, batch_size), strict=True)
