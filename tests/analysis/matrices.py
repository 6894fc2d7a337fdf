"""Layers of many kinds with the explicit matrix of each, column by column."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

Case = tuple[Callable[[], nn.Module], tuple[int, ...]]

CASES: dict[str, Case] = {
    "linear": (lambda: nn.Linear(7, 5), (7,)),
    "linear, wide": (lambda: nn.Linear(4, 9), (4,)),
    "conv": (lambda: nn.Conv2d(3, 4, 3, padding=1), (3, 6, 5)),
    "conv 1x1": (lambda: nn.Conv2d(5, 2, 1), (5, 4, 4)),
    "conv without padding": (lambda: nn.Conv2d(2, 3, 3), (2, 6, 6)),
    "stride 2": (lambda: nn.Conv2d(3, 4, 3, stride=2, padding=1), (3, 7, 6)),
    "stride 3, leaving pixels unused": (lambda: nn.Conv2d(2, 3, 2, stride=3), (2, 7, 7)),
    "groups": (lambda: nn.Conv2d(4, 6, 3, padding=1, groups=2), (4, 5, 5)),
    "depthwise": (lambda: nn.Conv2d(4, 4, 5, padding=2, groups=4), (4, 6, 6)),
    "dilation": (lambda: nn.Conv2d(2, 3, 3, padding=2, dilation=2), (2, 7, 7)),
    "all at once": (lambda: nn.Conv2d(4, 4, (3, 2), stride=(2, 1), padding=(2, 0), dilation=2, groups=2), (4, 8, 7)),
    "same": (lambda: nn.Conv2d(2, 3, 3, padding="same", dilation=2), (2, 6, 5)),
    "circular": (lambda: nn.Conv2d(2, 2, 3, padding=1, padding_mode="circular"), (2, 5, 5)),
    "reflect": (lambda: nn.Conv2d(2, 2, 3, padding=1, padding_mode="reflect"), (2, 5, 5)),
    "1-d": (lambda: nn.Conv1d(3, 4, 3, stride=2, padding=1), (3, 11)),
    "3-d": (lambda: nn.Conv3d(2, 2, 2), (2, 3, 4, 3)),
}


def made(name: str) -> tuple[nn.Module, tuple[int, ...], Tensor]:
    """The layer in float64, the shape of its input, and its matrix."""
    build, shape = CASES[name]
    with torch.random.fork_rng():
        torch.manual_seed(len(name))
        layer = build().double().eval()
    return layer, shape, matrix_of(layer, shape)


@torch.no_grad()
def matrix_of(layer: nn.Module, shape: tuple[int, ...]) -> Tensor:
    """The matrix (outputs, inputs) of a layer, from what it does to unit vectors and to 0."""
    size = torch.Size(shape).numel()
    units = torch.eye(size, dtype=torch.float64).view(size, *shape)
    return (layer(units) - layer(torch.zeros(1, *shape, dtype=torch.float64))).flatten(1).T


def masks(shape: tuple[int, ...], count: int, seed: int = 0, *, binary: bool = True) -> Tensor:
    """Random factors in {0, 1} or [0, 1], of other density for each; the first keeps nothing, the last everything."""
    numbers = torch.rand(count, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    density = torch.linspace(0, 1, count, dtype=torch.float64).view(-1, *[1] * len(shape))
    kept = (numbers < density).double()
    return kept if binary else kept * numbers
