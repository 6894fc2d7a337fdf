"""APGD against closed forms on linear models, and its schedule against the published one."""

import pytest
import torch

from lipforge.attacks import APGD, TargetedAPGD, norms
from lipforge.attacks.apgd import Climbers, Schedule, phases
from lipforge.attacks.queries import is_misclassified
from lipforge.attacks.state import Slope
from lipforge.errors import InputError
from lipforge.types import Threat
from tests.attacks.oracles import linear_classes, linear_oracle, small_images, small_net


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("loss", ["ce", "margin"])
def test_apgd_reaches_the_optimum_on_a_linear_model(norm, loss):
    model, x, y = linear_oracle()
    result = APGD(loss=loss).run(model, x, y, threat=Threat(norm, 0.02))
    robust = ~result.broken
    assert robust.sum() >= 8
    margin = 2 * model(result.images).gather(1, y[:, None]).squeeze(1)
    torch.testing.assert_close(margin[robust], model.worst_margin(x, y, 0.02, norm)[robust], rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize(
    ("attack", "classes"),
    [
        (APGD(steps=30), 2),  # with more classes only a targeted goal is sure to end at the nearest boundary
        (TargetedAPGD(steps=30), 5),
        (TargetedAPGD(steps=30, loss="margin"), 3),
        (TargetedAPGD(steps=30, loss="margin"), 2),
    ],
    ids=str,
)
def test_apgd_breaks_an_image_of_a_linear_model_exactly_where_it_can(attack, classes, norm):
    model, x, y = linear_classes(classes)
    distance = model.distance(x, y, norm)
    eps = float(distance.median())
    clear = (distance / eps - 1).abs() > 0.01  # the median itself is a tie
    broken = attack.run(model, x, y, threat=Threat(norm, eps)).broken
    assert clear.sum() >= 50
    assert torch.equal(broken[clear], (distance < eps)[clear])


@pytest.mark.parametrize(("attack", "classes"), [(APGD(), 2), (TargetedAPGD(loss="margin"), 5)], ids=str)
def test_apgd_breaks_an_image_of_a_linear_model_in_l1_where_it_can(attack, classes):
    model, x, y = linear_classes(classes)
    distance = model.distance(x, y, "l1")
    eps = float(distance.median())
    assert eps < 0.3  # so that [0, 1] does not bind
    broken = attack.run(model, x, y, threat=Threat("l1", eps)).broken
    # The best change is one entry; steps over several entries come within a few percent of it.
    assert not broken[distance > 1.001 * eps].any()
    assert broken[distance < 0.95 * eps].all()
    assert (distance < 0.95 * eps).sum() >= 20


@pytest.mark.parametrize("steps", [1, 2, 3, 4, 5])
def test_in_l1_a_short_climb_judges_points_inside_eps_too(steps):
    assert phases(steps)[2] >= 1
    assert sum(phases(steps)) == steps
    model, x, y = linear_classes(2)
    eps = 3 * float(model.distance(x, y, "l1").max())
    result = APGD(steps=steps).run(model, x, y, threat=Threat("l1", eps))
    assert result.broken.sum() > 20


def test_in_l1_a_climb_costs_a_forward_more_for_each_of_its_three_balls():
    model = small_net(classes=4)
    x, y = small_images(model)
    result = APGD(steps=10).run(model, x, y, threat=Threat("l1", 1e-4))
    assert phases(10) == (3, 3, 4)
    assert result.forwards.tolist() == [1 + 10 + 3] * len(x)
    assert result.backwards.tolist() == [10] * len(x)


@pytest.mark.parametrize(("attack", "forwards"), [(APGD(steps=7), 1 + 8), (TargetedAPGD(steps=7), 1 + 3 * 8)])
def test_a_robust_image_costs_one_forward_per_step_and_no_last_gradient(attack, forwards):
    model = small_net(classes=4)
    x, y = small_images(model)
    result = attack.run(model, x, y, threat=Threat("linf", 1e-6))
    assert result.forwards.tolist() == [forwards] * len(x)
    assert result.backwards.tolist() == [(forwards - 1) // 8 * 7] * len(x)


def test_the_checkpoints_are_the_published_ones():
    assert Schedule(100, 0.75).checkpoints() == {22: 22, 41: 19, 57: 16, 70: 13, 80: 10, 87: 7, 93: 6, 99: 6}
    assert Schedule(1, 0.75).checkpoints() == {1: 1}


def _climbers(values):
    """Climbers that saw these values (steps + 1 of them, one list per image) since their start."""
    columns = torch.tensor(values, dtype=torch.float64).T
    x = torch.zeros(len(values), 1, 1, 1, dtype=torch.float64)

    def slope(step):
        return Slope(torch.full_like(x, float(step)), columns[step], torch.empty(0))

    # In a ball of radius 0.5 the first step, as long as the ball is wide, is 1.
    found = Climbers(norms.of("linf"), 0.5, 0.75, torch.arange(len(values)), x, x, slope(0))
    for step in range(1, len(columns)):
        found.last_point, found.point = found.point, torch.full_like(x, float(step))
        found.see(slope(step))
    return found


def test_a_climb_that_rises_too_seldom_is_halved_and_returns_to_its_best_point():
    # Of 4 steps: 4, 3 and 2 rises. 0.75 * 4 = 3 rises are not enough, only more are.
    found = _climbers([[0, 1, 2, 3, 4], [0, 1, 2, 3, 2], [0, 5, 1, 2, 0]])
    found.judge(4)
    assert found.step_size.flatten().tolist() == [1.0, 0.5, 0.5]
    assert found.point.flatten().tolist() == [4, 3, 1]
    assert found.gradient.flatten().tolist() == [4, 3, 1]
    assert found.rises.tolist() == [0, 0, 0]


def test_a_climb_whose_best_has_not_moved_is_halved_unless_it_was_halved_last_time():
    found = _climbers([[0, 1, 2, 3, 4]])
    found.judge(4)
    found.rises += 4  # rising all the time, below a best that was found earlier
    found.judge(4)
    assert found.step_size.item() == 0.5
    found.rises += 4
    found.judge(4)
    assert found.step_size.item() == 0.5


def test_more_eps_breaks_at_least_as_many():
    model = small_net()
    x, y = small_images(model, 100)
    counts = [
        int(is_misclassified(model, APGD(steps=20)(model, x, y, threat=Threat("linf", eps)), y).sum())
        for eps in (0.002, 0.005, 0.01, 0.02, 0.04)
    ]
    assert counts == sorted(counts)
    assert counts[0] < counts[-1]


def test_repeats_average_the_gradients_of_a_random_model():
    generator = torch.Generator().manual_seed(0)
    weight = torch.tensor([1.0, -1.0], dtype=torch.float64)[:, None]

    last: list[torch.Tensor] = []

    def noisy(x):
        last[:] = [x.detach()]
        # The true slope is 1 per pixel; noise of 3 hides it from a single pass.
        noise = 3 * torch.randn(len(x), 1, 3, 3, generator=generator, dtype=x.dtype)
        score = (x * (1 + noise)).flatten(1).sum(dim=1) + 40  # no noise is that large: y wins
        return (score * weight).T

    x, y = torch.full((40, 1, 3, 3), 0.5, dtype=torch.float64), torch.zeros(40, dtype=torch.int64)
    slopes = []
    for eot_iter in (1, 200):
        result = APGD(steps=1, eot_iter=eot_iter, loss="margin").run(noisy, x, y, threat=Threat("linf", 0.1))
        slopes.append(last[0].mean().item())
        assert result.forwards.tolist() == [1 + 2 * eot_iter] * 40
        assert result.backwards.tolist() == [eot_iter] * 40
    assert slopes[0] > 0.43
    assert slopes[1] < 0.402  # every pixel down by eps


@pytest.mark.parametrize(
    ("kind", "settings", "message"),
    [
        (APGD, {"steps": 0}, "at least 1"),
        (APGD, {"rho": 1.0}, "rho must lie between"),
        (APGD, {"eot_iter": 0}, "eot_iter must be"),
        (APGD, {"loss": "hinge"}, "one of ce"),
        (TargetedAPGD, {"loss": "ce"}, "one of margin, dlr"),
        (TargetedAPGD, {"targets": 0}, "targets must be"),
        (TargetedAPGD, {"restarts": 0}, "at least 1"),
    ],
)
def test_settings_that_make_no_sense_are_refused(kind, settings, message):
    with pytest.raises(InputError, match=message):
        kind(**settings)


def test_the_targeted_dlr_loss_is_refused_with_three_classes():
    model, x, y = linear_classes(3)
    with pytest.raises(InputError, match="at least 4 classes, the model has 3; use margin"):
        TargetedAPGD()(model, x, y, threat=Threat("linf", 0.01))
