"""Settings: what is refused, how differences read, and learning rate and eps over time."""

import math

import pytest

from lipforge.errors import InputError, RunError
from lipforge.training import TrainConfig
from lipforge.training.config import check_same, eps_share, learning_rate
from lipforge.types import Threat


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"method": "magic"}, "one of standard, fgsm-rs, pgd-at, trades, got 'magic'"),
        ({"schedule": "flat"}, "one of cyclic, cosine"),
        ({"optimizer": "lion"}, "one of sgd, adamw"),
        ({"epochs": 0}, "epochs must be at least 1"),
        ({"limit": 0}, "limit must be at least 1"),
        ({"lr": 0.0}, "lr must be above 0"),
        ({"lr": float("nan")}, "lr must be above 0"),
        ({"ema": 1.0}, r"ema must lie in \[0, 1\)"),
        ({"awp": -0.1}, "awp must not be negative"),
        ({"threat": Threat("l1", 1.0)}, "no l1 form; use linf or l2"),
    ],
    ids=lambda value: str(value),
)
def test_settings_that_make_no_sense_are_refused(settings, message):
    with pytest.raises(InputError, match=message):
        TrainConfig(**settings)


@pytest.mark.parametrize(
    ("method", "steps", "step_size"),
    [("standard", 0, 0.25), ("fgsm-rs", 1, 1.25), ("pgd-at", 10, 0.25), ("trades", 10, 0.25)],
)
def test_each_method_has_an_attack_of_its_own(method, steps, step_size):
    config = TrainConfig(method=method)
    assert config.attack_steps == steps
    assert config.attack_step_size == step_size


def test_differences_name_the_setting_and_both_values():
    with pytest.raises(RunError) as caught:
        check_same({"lr": 0.1, "seed": 0, "old": 1}, {"lr": 0.2, "seed": 0}, "runs/a")
    assert str(caught.value).splitlines()[1:] == [
        "  lr: 0.1 recorded, 0.2 wanted",
        "  old: 1 recorded, None wanted",
    ]


def test_other_settings_are_refused_with_every_difference():
    with pytest.raises(RunError, match=r"(?s)runs/a was trained with other settings.*lr: 0.1.*epochs: 3") as caught:
        check_same({"lr": 0.1, "epochs": 3, "seed": 0}, {"lr": 0.2, "epochs": 4, "seed": 0}, "runs/a")
    assert "seed" not in str(caught.value)


def test_a_run_of_an_older_version_is_refused_with_a_way_on():
    with pytest.raises(
        RunError, match=r"runs/a was started by an older lipforge.*called step_size 'step'.*another dir"
    ):
        check_same({"lr": 0.1, "step": 0.0}, {"lr": 0.1, "step_size": 0.0}, "runs/a")


@pytest.mark.parametrize("schedule", ["cyclic", "cosine"])
def test_the_rate_climbs_in_a_line_to_its_peak_and_ends_at_zero(schedule):
    config = TrainConfig(lr=0.3, schedule=schedule, warmup=0.25)
    assert learning_rate(config, 0.125) == pytest.approx(0.15)
    assert learning_rate(config, 0.25) == pytest.approx(0.3)
    assert learning_rate(config, 1.0) == pytest.approx(0.0, abs=1e-12)


def test_the_cyclic_rate_comes_down_in_a_line():
    assert learning_rate(TrainConfig(lr=0.3, warmup=0.25), 0.5) == pytest.approx(0.2)


def test_the_cosine_rate_comes_down_along_a_cosine():
    config = TrainConfig(lr=0.3, schedule="cosine", warmup=0.25)
    assert learning_rate(config, 0.5) == pytest.approx(0.3 * (1 + math.cos(math.pi / 3)) / 2)


def test_without_warmup_the_rate_starts_at_its_peak():
    assert learning_rate(TrainConfig(lr=0.3, warmup=0.0), 0.0) == pytest.approx(0.3)


def test_eps_is_whole_at_once_without_warmup():
    assert eps_share(TrainConfig(), 0.0) == 1.0


def test_eps_jumps_after_clean_epochs_without_warmup():
    config = TrainConfig(clean_epochs=2)
    assert [eps_share(config, epoch) for epoch in (1.99, 2.0)] == [0.0, 1.0]
