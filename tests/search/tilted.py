"""Linear classifiers of two classes, for which it is known which images are robust."""

import torch
from torch import Tensor, nn

from lipforge.attacks import PGD
from lipforge.types import Threat
from tests.nets import images

THREAT = Threat("linf", 0.02)
ATTACK = PGD(steps=3, step_size=2.0, loss="margin")


class Tilted(nn.Module):
    """Two classes by one weight vector, tilted by `angle` toward another: what is robust is known in closed form."""

    def __init__(self, angle: float = 0.0, shift: float = 0.0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(7)
        first, second = torch.randn(2, 48, generator=generator)
        self.weight = nn.Parameter(first + angle * second, requires_grad=False)
        self.shift = shift
        self.seen = [0]  # no plain value: what changes as a model runs is no setting of it
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        self.seen[0] += len(x)
        score = (x.flatten(1) - 0.5) @ self.weight + self.shift
        return torch.stack([-score, score], dim=1)

    @property
    def calls(self) -> int:
        return self.seen[0]

    def robust(self, x: Tensor, y: Tensor) -> list[bool]:
        """The score must beat eps times the l1 norm of the weights; the images are so far inside [0, 1]."""
        score = (x.flatten(1) - 0.5) @ self.weight + self.shift
        return (torch.where(y == 1, score, -score) > THREAT.eps * self.weight.abs().sum()).tolist()


class Flat(Tilted):
    """The same classifier without a gradient."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.detach()) + 0 * x.flatten(1).sum(dim=1, keepdim=True)


class Backwards(Tilted):
    """The same classifier with its gradient turned around: attacks on it walk away from the boundary."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(2 * x.detach() - x) if x.requires_grad else super().forward(x)


def task(count: int = 60) -> tuple[Tensor, Tensor]:
    x = 0.1 + 0.8 * images(count, size=4)
    return x, Tilted()(x).argmax(dim=1)


def robust(outcome: list[str]) -> list[bool]:
    return [word == "robust" for word in outcome]
