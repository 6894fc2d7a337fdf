import pytest
import torch
from torch import Tensor, nn

from lipforge.attacks.norms import distance, inside
from lipforge.errors import ModelError
from lipforge.evaluation.push import push
from lipforge.types import Threat
from tests.evaluation.toys import labelled, linear
from tests.nets import images, seeded

THREAT = Threat("linf", "16/255")


def test_pushing_on_raises_the_margin_and_stays_inside_the_threat():
    model = seeded(lambda: nn.Sequential(nn.Flatten(), nn.Linear(48, 16), nn.Tanh(), nn.Linear(16, 3)))
    x, y = labelled(model, count=30)
    start = x + 0.5 * THREAT.eps * torch.rand(x.shape, generator=torch.Generator().manual_seed(0))
    pushed = push(model, start, x, y, torch.arange(30), THREAT, 10).points

    def margins(points: Tensor) -> Tensor:
        logits = model(points)
        own = logits.gather(1, y[:, None]).squeeze(1)
        return logits.scatter(1, y[:, None], -torch.inf).amax(dim=1) - own

    assert (margins(pushed) > margins(start)).all()
    assert (pushed - x).abs().max() <= THREAT.eps + 1e-6
    assert torch.equal(push(model, start, x, y, torch.arange(30), THREAT, 0).points, start)


def test_a_push_that_overshoots_keeps_the_best_point_on_its_way():
    """A bump as narrow as one step: the first step climbs it, the next ones fall off on the other side."""

    def bump(x: Tensor) -> Tensor:
        height = -((x.flatten(1).mean(dim=1) - 0.5).abs())
        return torch.stack([torch.zeros_like(height), height], dim=1)

    x, y = torch.full((1, 3, 4, 4), 0.48), torch.zeros(1, dtype=torch.long)
    pushed = push(bump, x, x, y, torch.arange(1), Threat("linf", 0.3), steps=2)
    torch.testing.assert_close(pushed.points, torch.full_like(x, 0.51))
    assert (pushed.forwards, pushed.backwards) == (3, 2)
    torch.testing.assert_close(pushed.margin, torch.tensor([-0.01]))


def test_the_last_step_of_a_push_counts():
    model = linear()
    x, y = labelled(model)
    pushed = push(model, x, x, y, torch.arange(len(x)), THREAT, steps=10).points
    torch.testing.assert_close(distance(pushed - x, THREAT), torch.full((len(x),), THREAT.eps))


@pytest.mark.parametrize("threat", [Threat("linf", 0.2), Threat("l2", 1.0)], ids=str)
def test_a_push_stays_inside_the_ball_and_the_box(threat):
    model = linear()
    x, y = images(20, size=4).round(), torch.zeros(20, dtype=torch.long)
    pushed = push(model, x, x, y, torch.arange(20), threat, steps=30).points
    assert inside(pushed, x, threat).all()
    assert distance(pushed - x, threat).median() > 0.9 * threat.eps


def test_where_there_is_no_gradient_a_push_says_so():
    """The first class's logit jumps: its gradient is 0 everywhere."""

    def steps(x: Tensor) -> Tensor:
        bright = (x.flatten(1).mean(dim=1) > 0.5) + 0 * x.flatten(1).sum(dim=1)
        return torch.stack([bright, torch.zeros_like(bright)], dim=1)

    x, y = images(6, size=4), torch.zeros(6, dtype=torch.long)
    for model in (steps, lambda x: steps(x.detach())):
        pushed = push(model, x, x, y, torch.arange(6), THREAT)
        assert pushed.stuck.all()
        assert torch.equal(pushed.points, x)


def test_nan_logits_name_the_image():
    x, y = images(2, size=4), torch.zeros(2, dtype=torch.long)
    with pytest.raises(ModelError, match="image 17"):
        push(lambda x: x.flatten(1)[:, :2] * torch.nan, x, x, y, torch.tensor([17, 18]), THREAT)
