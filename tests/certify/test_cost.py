import pytest
import torch

from lipforge.certify import certify_cost
from tests.certify.halves import half_space


def test_the_estimate_counts_every_pass_and_asks_for_two_batches_only():
    asked = []

    def model(x):
        asked.append(len(x))
        return half_space()(x)

    data = (torch.zeros(50, 3, 4, 4), torch.zeros(50, dtype=torch.int64))
    cost = certify_cost(model, data, n0=100, n=1000, skip=20, batch_size=64)
    assert (cost.count, cost.forwards, cost.probed_forwards) == (3, 3 * 1100, 128)
    assert asked == [64, 64]
    assert cost.seconds > 0
    assert cost.seconds == pytest.approx(3 * cost.seconds_per_image)
    assert str(cost).startswith("3 images, 3,300 forward passes, about ")
