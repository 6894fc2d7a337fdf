import pytest
import torch
from torch import Tensor, nn

from lipforge.attacks import margin, norms, refine
from lipforge.errors import ModelError
from lipforge.types import Threat
from tests.evaluation.toys import labelled, linear
from tests.nets import images, seeded

THREAT = Threat("linf", "16/255")


def test_refining_lowers_the_margin_and_stays_inside_the_threat():
    model = seeded(lambda: nn.Sequential(nn.Flatten(), nn.Linear(48, 16), nn.Tanh(), nn.Linear(16, 3)))
    x, y = labelled(model, count=30)
    start = x + 0.5 * THREAT.eps * torch.rand(x.shape, generator=torch.Generator().manual_seed(0))
    refined = refine(model, start, x, y, torch.arange(30), THREAT, 10).points

    assert (margin(model(refined), y) < margin(model(start), y)).all()
    assert (refined - x).abs().max() <= THREAT.eps + 1e-6
    assert torch.equal(refine(model, start, x, y, torch.arange(30), THREAT, 0).points, start)


def test_refining_that_overshoots_keeps_the_best_point_on_its_way():
    """A bump as narrow as one step: the first step climbs it, the next ones fall off on the other side."""

    def bump(x: Tensor) -> Tensor:
        height = -((x.flatten(1).mean(dim=1) - 0.5).abs())
        return torch.stack([torch.zeros_like(height), height], dim=1)

    x, y = torch.full((1, 3, 4, 4), 0.48), torch.zeros(1, dtype=torch.long)
    refined = refine(bump, x, x, y, torch.arange(1), Threat("linf", 0.3), steps=2)
    torch.testing.assert_close(refined.points, torch.full_like(x, 0.51))
    assert (refined.forwards, refined.backwards) == (3, 2)
    torch.testing.assert_close(refined.margin, torch.tensor([0.01]))


def test_the_last_step_of_a_refinement_counts():
    model = linear()
    x, y = labelled(model)
    refined = refine(model, x, x, y, torch.arange(len(x)), THREAT, steps=10).points
    torch.testing.assert_close(norms.of(THREAT).distance(refined - x), torch.full((len(x),), THREAT.eps))


@pytest.mark.parametrize("threat", [Threat("linf", 0.2), Threat("l2", 1.0)], ids=str)
def test_a_refined_point_stays_inside_the_ball_and_the_box(threat):
    model = linear()
    x, y = images(20, size=4).round(), torch.zeros(20, dtype=torch.long)
    refined = refine(model, x, x, y, torch.arange(20), threat, steps=30).points
    assert norms.of(threat).inside(refined, x, threat.eps).all()
    assert norms.of(threat).distance(refined - x).median() > 0.9 * threat.eps


def test_where_there_is_no_gradient_the_refinement_says_so():
    """The first class's logit jumps: its gradient is 0 everywhere."""

    def steps(x: Tensor) -> Tensor:
        bright = (x.flatten(1).mean(dim=1) > 0.5) + 0 * x.flatten(1).sum(dim=1)
        return torch.stack([bright, torch.zeros_like(bright)], dim=1)

    x, y = images(6, size=4), torch.zeros(6, dtype=torch.long)
    for model in (steps, lambda x: steps(x.detach())):
        refined = refine(model, x, x, y, torch.arange(6), THREAT)
        assert refined.stuck.all()
        assert torch.equal(refined.points, x)


def test_nan_logits_name_the_image():
    x, y = images(2, size=4), torch.zeros(2, dtype=torch.long)
    with pytest.raises(ModelError, match="image 17"):
        refine(lambda x: x.flatten(1)[:, :2] * torch.nan, x, x, y, torch.tensor([17, 18]), THREAT)
