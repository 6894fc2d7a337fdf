"""The boundary walk against closed forms on linear models, and that it asks for gradients next to the boundary only."""

import pytest
import torch

from lipforge.attacks import Boundary
from lipforge.errors import InputError
from lipforge.types import Threat
from tests.attacks.oracles import linear_oracle, small_images, small_net


def nearest(model, x, y, norm):
    """How far (N,) the boundary of a linear model is: half the margin over the dual norm of w."""
    weight = model.weight.detach()
    dual = {"linf": weight.abs().sum(), "l2": weight.square().sum().sqrt(), "l1": weight.abs().max()}[norm]
    return model(x).gather(1, y[:, None]).squeeze(1).detach() / dual


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_the_walk_reaches_the_nearest_point_of_a_linear_model(norm):
    model, x, y = linear_oracle(4)
    radii = nearest(model, x, y, norm)
    for image, label, radius in zip(x.split(1), y.split(1), radii.tolist(), strict=True):
        for share, broken in ((1.02, True), (0.999, False)):
            threat = Threat(norm, radius * share)
            assert Boundary(steps=30, restarts=2).run(model, image, label, threat=threat).broken.item() == broken


def test_in_l1_an_image_is_broken_only_if_the_boundary_is_inside_eps():
    model, x, y = linear_oracle(24)
    radii = nearest(model, x, y, "l1")
    eps = float(radii.median())
    broken = Boundary(steps=20).run(model, x, y, threat=Threat("l1", eps)).broken
    assert not broken[radii > eps].any()
    assert broken[3 * radii < eps].all()
    assert broken.any()


def test_gradients_are_asked_for_next_to_the_boundary_only():
    net = small_net()
    x, y = small_images(net, 20)
    margins = []

    def watched(points):
        logits = net(points)
        if torch.is_grad_enabled():
            best = logits.detach().topk(2, dim=1).values
            margins.extend((best[:, 0] - best[:, 1]).tolist())
        return logits

    Boundary(steps=5).run(watched, x, y, threat=Threat("linf", 1e-4))
    best = net(x).topk(2, dim=1).values
    clean = (best[:, 0] - best[:, 1]).median()
    assert len(margins) >= 5 * 10
    assert torch.tensor(margins).median() < 0.2 * clean


def test_a_walk_does_not_depend_on_the_batch():
    model, threat = small_net().double(), Threat("linf", 0.015)
    x, y = small_images(small_net(), 12)
    together = Boundary(steps=4).run(model, x.double(), y, threat=threat)
    ids = torch.arange(12)
    alone = [
        Boundary(steps=4).run(model, x[k : k + 1].double(), y[k : k + 1], threat=threat, sample_ids=ids[k : k + 1])
        for k in range(12)
    ]
    assert 0 < together.broken.sum() < 12
    assert torch.equal(torch.cat([result.broken for result in alone]), together.broken)
    assert torch.equal(torch.cat([result.forwards for result in alone]), together.forwards)


def test_a_step_costs_at_most_five_forwards_and_the_bisections_and_one_backward():
    model = small_net()
    x, y = small_images(model, 40)
    result = Boundary(steps=7, restarts=2, bisections=6).run(model, x, y, threat=Threat("linf", 1e-6))
    assert not result.broken.any()
    assert result.backwards.max() == 14
    # The clean image, and for each restart noise, negative and the way back, then the steps.
    assert result.forwards.max() <= 1 + 2 * (2 + 6 + 7 * 11)


def test_an_image_leaves_at_once_when_it_is_broken():
    model = small_net()
    x, y = small_images(model, 40)
    result = Boundary(steps=1, bisections=50).run(model, x, y, threat=Threat("linf", 0.9))
    far = result.broken & (result.backwards == 0)
    assert far.sum() > 10
    # The clean image, noise and perhaps the negative, the first question of the way back, and the confirmation.
    assert result.forwards[far].max() <= 1 + 2 + 1 + 1


def test_an_image_that_is_of_one_class_everywhere_is_left_alone():
    def constant(x):
        return torch.tensor([1.0, 0.0, 0.0]) + 0 * x.flatten(1)[:, :3]

    x, y = torch.full((3, 3, 4, 4), 0.4), torch.zeros(3, dtype=torch.int64)
    result = Boundary(steps=3).run(constant, x, y, threat=Threat("linf", "8/255"))
    assert not result.broken.any()
    assert result.backwards.tolist() == [0, 0, 0]
    assert result.forwards.tolist() == [1 + 2] * 3  # clean, noise, negative


def test_no_steps_are_refused():
    with pytest.raises(InputError, match="steps must be at least 1, got 0"):
        Boundary(steps=0)
