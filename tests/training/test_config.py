"""Settings: what is refused, and how differences read."""

import pytest

from lipforge.errors import InputError, RunError
from lipforge.training import TrainConfig
from lipforge.training.config import check_same, differences
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
        ({"threat": Threat("l1", 1.0)}, "linf and l2, got l1"),
    ],
    ids=lambda value: str(value),
)
def test_settings_that_make_no_sense_are_refused(settings, message):
    with pytest.raises(InputError, match=message):
        TrainConfig(**settings)


@pytest.mark.parametrize(
    ("method", "steps", "step"),
    [("standard", 0, 0.25), ("fgsm-rs", 1, 1.25), ("pgd-at", 10, 0.25), ("trades", 10, 0.25)],
)
def test_each_method_has_an_attack_of_its_own(method, steps, step):
    config = TrainConfig(method=method)
    assert config.attack_steps == steps
    assert config.attack_step == step


def test_differences_name_the_setting_and_both_values():
    assert differences({"lr": 0.1, "seed": 0, "old": 1}, {"lr": 0.2, "seed": 0}) == [
        "lr: 0.1 recorded, 0.2 wanted",
        "old: 1 recorded, None wanted",
    ]


def test_other_settings_are_refused_with_every_difference():
    with pytest.raises(RunError, match=r"(?s)runs/a was trained with other settings.*lr: 0.1.*epochs: 3") as caught:
        check_same({"lr": 0.1, "epochs": 3, "seed": 0}, {"lr": 0.2, "epochs": 4, "seed": 0}, "runs/a")
    assert "seed" not in str(caught.value)
