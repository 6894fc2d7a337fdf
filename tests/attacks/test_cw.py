"""CW: for linf PGD on the margin, for l2 against the closed-form distance."""

import pytest
import torch

from lipforge.attacks import CW, PGD
from lipforge.errors import InputError
from lipforge.types import Threat
from tests.attacks.oracles import linear_classes, linear_oracle, small_images, small_net


def test_cw_reaches_the_optimum_on_a_linear_model():
    model, x, y = linear_oracle()
    result = CW().run(model, x, y, threat=Threat("linf", 0.02))
    robust = ~result.broken
    assert robust.sum() >= 8
    margin = 2 * model(result.images).gather(1, y[:, None]).squeeze(1)
    torch.testing.assert_close(margin[robust], model.worst_margin(x, y, 0.02, "linf")[robust])


def test_cw_is_pgd_on_the_margin():
    model = small_net()
    x, y = small_images(model)
    threat = Threat("linf", 0.01)
    expected = PGD(steps=5, loss="margin", step_size=0.5, restarts=2)(model, x, y, threat=threat)
    assert torch.equal(CW(steps=5, step_size=0.5, restarts=2)(model, x, y, threat=threat), expected)


@pytest.mark.parametrize("classes", [2, 4])
def test_cw_in_l2_breaks_an_image_of_a_linear_model_exactly_where_it_can(classes):
    model, x, y = linear_classes(classes, count=40)
    distance = model.distance(x, y, "l2")
    eps = float(distance.median())
    clear = (distance / eps - 1).abs() > 0.03  # Adam circles the boundary at its last step size
    broken = CW(steps=100).run(model, x, y, threat=Threat("l2", eps)).broken
    assert clear.sum() >= 30
    assert torch.equal(broken[clear], (distance < eps)[clear])


def test_a_robust_image_in_l2_costs_one_forward_per_step():
    model = small_net()
    x, y = small_images(model)
    result = CW(steps=6, binary_search_steps=2).run(model, x, y, threat=Threat("l2", 1e-6))
    assert result.forwards.tolist() == [1 + 2 * 7] * len(x)
    assert result.backwards.tolist() == [2 * 6] * len(x)


def test_cw_refuses_l1_and_names_attacks_that_know_it():
    model = small_net()
    x, y = small_images(model)
    with pytest.raises(InputError, match="linf and l2, got l1; for l1 use fast, autoattack or pgd"):
        CW(steps=2)(model, x, y, threat=Threat("l1", 1.0))


@pytest.mark.parametrize(
    "settings",
    [
        {"steps": 0},
        {"restarts": 0},
        {"step_size": 0.0},
        {"binary_search_steps": 0},
        {"initial_const": 0.0},
        {"lr": -1.0},
    ],
)
def test_settings_that_make_no_sense_are_refused(settings):
    with pytest.raises(InputError, match=r"at least 1|above 0"):
        CW(**settings)
