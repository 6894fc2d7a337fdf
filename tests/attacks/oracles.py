"""Models whose worst case is known in closed form, and a small one that is not linear."""

import torch
from torch import Tensor, nn

from lipforge import rng
from lipforge.types import Classifier


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


class LinearClasses(nn.Module):
    """Several classes, z = W x + b: the distance to every class boundary is known in closed form."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)

    def forward(self, x: Tensor) -> Tensor:
        return (x - 0.5).flatten(1) @ self.weight.T

    def distances(self, x: Tensor, y: Tensor, norm: str) -> Tensor:
        """How far (N, K) the boundary of class y to each class is, where [0, 1] does not bind; infinite to itself."""
        logits = self(x)
        gap = logits.gather(1, y[:, None]) - logits
        between = self.weight[y][:, None] - self.weight[None]
        order = {"linf": 1, "l2": 2, "l1": torch.inf}[norm]
        dual = torch.linalg.vector_norm(between, order, dim=2)
        return torch.where(dual > 0, gap / dual.clamp_min(1e-12), torch.inf).detach()

    def distance(self, x: Tensor, y: Tensor, norm: str) -> Tensor:
        """How far (N,) the nearest boundary of class y is."""
        return self.distances(x, y, norm).amin(dim=1)


def linear_classes(classes: int, count: int = 60) -> tuple[LinearClasses, Tensor, Tensor]:
    """A linear model in float64, points well inside [0, 1], and the model's own labels."""
    ids = torch.arange(count)
    weight = rng.normal(11, torch.arange(classes), stream="weight", shape=(18,), dtype=torch.float64)
    model = LinearClasses(weight).eval()
    x = rng.uniform(11, ids, stream="points", shape=(2, 3, 3), low=0.3, high=0.7, dtype=torch.float64)
    return model, x, model(x).argmax(dim=1)


class Counted:
    """The model, with the number of images that went forward and backward through it."""

    def __init__(self, model: Classifier) -> None:
        self.model, self.images, self.gradients = model, 0, 0

    def __call__(self, x: Tensor) -> Tensor:
        self.images += len(x)
        x = x.clone()
        if x.requires_grad:
            x.register_hook(self._came_back)
        logits: Tensor = self.model(x)
        return logits

    def _came_back(self, gradient: Tensor) -> None:
        self.gradients += len(gradient)
