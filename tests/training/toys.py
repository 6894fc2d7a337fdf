"""A small classification task that a small network learns in seconds."""

import torch
from torch import Tensor, nn

from lipforge import rng
from lipforge.training import seeded


def toy_images(count: int = 320, *, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Images (count, 3, 8, 8) of four classes: which quarter is bright, under noise."""
    ids = torch.arange(count)
    labels = ids % 4
    images = rng.uniform(seed, ids, stream="toy", shape=(3, 8, 8), low=0.2, high=0.6)
    bright = torch.zeros(4, 1, 8, 8)
    for quarter in range(4):
        row, column = 4 * (quarter // 2), 4 * (quarter % 2)
        bright[quarter, :, row : row + 4, column : column + 4] = 0.3
    return images + bright[labels], labels


def toy_net(seed: int = 0, *, norm: bool = True) -> nn.Sequential:
    """Two convolutions, batch norm unless unwanted, and a linear head for four classes."""
    with seeded(seed):
        return nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1),
            nn.BatchNorm2d(8) if norm else nn.Identity(),
            nn.ReLU(),
            nn.Conv2d(8, 8, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(8 * 16, 4),
        )
