"""Normalisation as the first layer of a model."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from lipforge.errors import InputError

CIFAR10_MEAN, CIFAR10_STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)


class Normalize(nn.Module):
    """`(images - mean) / std` per channel, so that the model behind it takes images in [0, 1].

    Mean and standard deviation are buffers: they follow the model to its device and dtype. They are not
    persistent: they belong to the architecture's arguments, so a checkpoint holds learned tensors only, and
    one that was trained with the normalisation outside of the model fits.

    >>> Normalize([0.5], [0.25])(torch.ones(1, 1, 1, 1)).item()
    2.0
    """

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        if len(mean) != len(std) or not len(mean):
            raise InputError(f"mean and std must have one value per channel, got {len(mean)} and {len(std)}")
        if not all(value > 0 for value in std):
            raise InputError(f"std must be above 0 in every channel, got {list(std)}")
        self.register_buffer("mean", torch.tensor(list(mean)).view(-1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(list(std)).view(-1, 1, 1), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        # Broadcasting would quietly turn a grey image into three channels, or three means into three images.
        if images.shape[-3] != len(self.mean):
            raise InputError(f"images must have {len(self.mean)} channels here, got the shape {tuple(images.shape)}")
        return (images - self.mean) / self.std

    def extra_repr(self) -> str:
        mean, std = ([round(value, 4) for value in part.flatten().tolist()] for part in (self.mean, self.std))
        return f"mean={mean}, std={std}"
