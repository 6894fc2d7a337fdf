"""Learning rate and eps over time."""

import math

import pytest

from lipforge.training import TrainConfig
from lipforge.training.schedule import eps_share, learning_rate


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
