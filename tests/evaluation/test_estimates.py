"""What an evaluation would cost."""

import time

import pytest
import torch

from lipforge.attacks import FGSM, PGD
from lipforge.errors import InputError
from lipforge.evaluation import evaluate
from lipforge.evaluation.estimates import estimate, rate
from tests.evaluation.toys import THREAT, labelled, linear

MODEL = linear()
X, Y = labelled(MODEL)


def test_a_probe_of_all_images_counts_the_passes_that_the_evaluation_takes():
    found = estimate(MODEL, (X, Y), PGD(steps=3), THREAT, probe=22)
    result = evaluate(MODEL, (X, Y), PGD(steps=3), THREAT)
    assert found.forwards * 22 == pytest.approx(result.forwards)
    assert found.backwards * 22 == pytest.approx(result.backwards)


def test_seconds_are_passes_over_passes_per_second():
    found = estimate(MODEL, (X, Y), FGSM(), THREAT, probe=5, devices=4)
    per_image = (found.forwards - found.backwards) / found.forward_rate + found.backwards / found.gradient_rate
    assert found.device_seconds == pytest.approx(22 * per_image)
    assert found.wall_seconds == pytest.approx(found.device_seconds / 4)
    assert found.interval[0] <= found.device_seconds <= found.interval[1]
    assert found.probe == 5


def test_a_rate_is_images_per_second_of_a_large_enough_batch():
    sizes, seconds = [], []

    def work(images: torch.Tensor) -> torch.Tensor:
        started = time.perf_counter()
        sizes.append(len(images))
        time.sleep(0.02)
        seconds.append(time.perf_counter() - started)
        return images

    begun = time.perf_counter()
    measured = rate(work, X[:3], 50)
    ended = time.perf_counter() - begun
    assert sizes[-1] == 50
    assert measured <= 50 / seconds[-1]
    # The rest of the time, which may hold a stall, cannot have gone into the last pass.
    assert measured >= 50 / (ended - sum(seconds[:-1]))


@pytest.mark.parametrize(("probe", "devices"), [(1, 1), (2, 0)])
def test_too_small_a_probe_and_no_device_are_refused(probe, devices):
    with pytest.raises(InputError, match="probe must be at least 2 images and devices at least 1"):
        estimate(MODEL, (X, Y), FGSM(), THREAT, probe=probe, devices=devices)
