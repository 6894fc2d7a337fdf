"""Weight averages, optimizers and the state on disk."""

from dataclasses import replace

import pytest
import torch

from lipforge.training import TrainConfig
from lipforge.training.session import make_average, make_optimizer, update_average_
from tests.training.toys import toy_net


def test_the_average_follows_the_recursion_by_hand():
    model, config = toy_net(), TrainConfig(ema=0.9)
    average = make_average(model, config)
    assert average is not None
    expected = model.get_parameter("0.weight").detach().clone()
    for steps in range(3):
        with torch.no_grad():
            model.get_parameter("0.weight").add_(1.0)
            model.get_buffer("1.running_mean").add_(2.0)
        update_average_(average, model, 0.9, steps=100 + steps)
        expected = 0.9 * expected + 0.1 * model.get_parameter("0.weight")
    torch.testing.assert_close(average.get_parameter("0.weight"), expected.detach(), rtol=0, atol=1e-6)
    # 0, then 0.9 * mean + 0.1 * (2, 4, 6): batch norm's statistics are averaged like the weights.
    torch.testing.assert_close(average.get_buffer("1.running_mean"), torch.full((8,), 0.2 * 0.81 + 0.4 * 0.9 + 0.6))


def test_the_average_forgets_the_initial_weights_early_on():
    model = toy_net()
    average = make_average(model, TrainConfig(ema=0.999))
    assert average is not None
    start = model.get_parameter("0.weight").detach().clone()
    with torch.no_grad():
        model.get_parameter("0.weight").add_(1.0)
    update_average_(average, model, 0.999, steps=0)
    torch.testing.assert_close(average.get_parameter("0.weight"), start + 0.9)


def test_no_average_is_kept_unless_asked_for():
    assert make_average(toy_net(), TrainConfig()) is None


@pytest.mark.parametrize("kind", ["sgd", "adamw"])
def test_weight_decay_acts_on_matrices_and_convolutions_only(kind):
    model = toy_net()
    optimizer = make_optimizer(model, replace(TrainConfig(weight_decay=0.1), optimizer=kind))
    decayed, undecayed = optimizer.param_groups
    assert decayed["weight_decay"] == 0.1
    assert undecayed["weight_decay"] == 0.0
    assert {weight.ndim for weight in decayed["params"]} == {2, 4}
    assert len(decayed["params"]) + len(undecayed["params"]) == len(list(model.parameters()))


def test_frozen_weights_stay_out_of_the_optimizer():
    model = toy_net()
    model[0].requires_grad_(False)
    groups = make_optimizer(model, TrainConfig()).param_groups
    assert sum(len(group["params"]) for group in groups) == len(list(model.parameters())) - 2
