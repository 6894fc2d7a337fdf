import torch
from torch import Tensor, nn

from lipforge.evaluation.push import push
from lipforge.types import Threat
from tests.evaluation.toys import labelled
from tests.nets import seeded

THREAT = Threat("linf", "16/255")


def test_pushing_on_raises_the_margin_and_stays_inside_the_threat():
    model = seeded(lambda: nn.Sequential(nn.Flatten(), nn.Linear(48, 16), nn.Tanh(), nn.Linear(16, 3)))
    x, y = labelled(model, count=30)
    start = x + 0.5 * THREAT.eps * torch.rand(x.shape, generator=torch.Generator().manual_seed(0))
    pushed = push(model, start, x, y, THREAT, 10)

    def margins(points: Tensor) -> Tensor:
        logits = model(points)
        own = logits.gather(1, y[:, None]).squeeze(1)
        return logits.scatter(1, y[:, None], -torch.inf).amax(dim=1) - own

    assert (margins(pushed) > margins(start)).all()
    assert (pushed - x).abs().max() <= THREAT.eps + 1e-6
    assert torch.equal(push(model, start, x, y, THREAT, 0), start)


def test_a_push_that_overshoots_keeps_the_best_point_on_its_way():
    """A bump as narrow as one step: the first step climbs it, the next ones fall off on the other side."""

    def bump(x: Tensor) -> Tensor:
        height = -((x.flatten(1).mean(dim=1) - 0.5).abs())
        return torch.stack([torch.zeros_like(height), height], dim=1)

    x, y = torch.full((1, 3, 4, 4), 0.48), torch.zeros(1, dtype=torch.long)
    pushed = push(bump, x, x, y, Threat("linf", 0.3), steps=2)
    torch.testing.assert_close(pushed, torch.full_like(x, 0.51))
