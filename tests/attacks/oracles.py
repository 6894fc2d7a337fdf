"""Models whose worst case is known in closed form, and a small one that is not linear."""

import torch
from torch import Tensor, nn

from lipforge import rng


class LinearOracle(nn.Module):
    """Two classes, z = (w.x, -w.x): the margin of label y falls by exactly 2 eps ||w||_dual under the best attack."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)

    def forward(self, x: Tensor) -> Tensor:
        score = (x * self.weight).flatten(1).sum(dim=1) - 0.5 * self.weight.sum()
        return torch.stack([score, -score], dim=1)

    def worst_margin(self, x: Tensor, y: Tensor, eps: float, norm: str) -> Tensor:
        """z_y - z_other after the best attack, where [0, 1] does not bind."""
        dual = self.weight.abs().sum() if norm == "linf" else self.weight.square().sum().sqrt()
        logits = self(x)
        own = logits.gather(1, y[:, None]).squeeze(1)
        worst: Tensor = 2 * own - 2 * eps * dual
        return worst


def linear_oracle(count: int = 16) -> tuple[LinearOracle, Tensor, Tensor]:
    """A linear model in float64, points well inside [0, 1], and the model's own labels."""
    ids = torch.arange(count)
    weight = rng.normal(7, torch.tensor([0]), stream="weight", shape=(2, 3, 3), dtype=torch.float64)[0]
    model = LinearOracle(weight).eval()
    x = rng.uniform(7, ids, stream="points", shape=(2, 3, 3), low=0.3, high=0.7, dtype=torch.float64)
    return model, x, model(x).argmax(dim=1)


def small_net(classes: int = 4) -> nn.Module:
    """A convolutional net with fixed random weights, in eval mode."""
    with torch.random.fork_rng():
        torch.manual_seed(3)
        net = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, classes)
        )
    return net.eval()


def small_images(model: nn.Module, count: int = 24, *, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Images that fit `small_net`, with the classes it gives them as labels."""
    x = rng.uniform(seed, torch.arange(count), stream="images", shape=(3, 6, 6))
    with torch.no_grad():
        return x, model(x).argmax(dim=1)
