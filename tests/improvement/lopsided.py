"""A linear classifier with a known gain: its mirror image cancels half of what an attack can use."""

import torch
from torch import Tensor, nn

from lipforge.types import Threat

THREAT = Threat("linf", "4/255")


class Lopsided(nn.Module):
    """Two classes by a symmetric weight; an antisymmetric one, blind to symmetric images, is there to be attacked."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        either, other = (torch.randn(3, 8, 8, generator=generator) for _ in range(2))
        self.even = (either + either.flip(-1)) / 2
        self.odd = other - other.flip(-1)
        self.head = nn.Linear(192, 2)
        weight = (self.even + self.odd).flatten()
        with torch.no_grad():
            self.head.weight.copy_(torch.stack((-weight, weight)))
            self.head.bias.copy_(torch.tensor([0.5, -0.5]) * weight.sum())
        self.requires_grad_(False).eval()

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(x.flatten(1))
        return logits

    def robust(self, x: Tensor, *, mirrored: bool) -> list[bool]:
        """Which images no perturbation inside the ball moves: a linear function falls by eps times the l1 norm."""
        weight = self.even if mirrored else self.even + self.odd
        margin = ((x - 0.5) * weight).sum(dim=(1, 2, 3)).abs()
        return list((margin > THREAT.eps * weight.abs().sum()).tolist())


def symmetric(count: int, seed: int = 1) -> tuple[Tensor, Tensor]:
    """Symmetric images around grey, far from 0 and 1, with the labels that the classifier gives them."""
    x = torch.rand(count, 3, 8, 8, generator=torch.Generator().manual_seed(seed)) * 0.4 + 0.3
    x = (x + x.flip(-1)) / 2
    return x, Lopsided()(x).argmax(dim=1)
