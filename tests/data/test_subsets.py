import hashlib
import json
from itertools import chain

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lipforge.batching import ImageData, batches
from lipforge.data import View, from_arrays, load_data, split, take
from lipforge.data.subsets import shuffled
from lipforge.errors import InputError


def numbered(count):
    """Image i is the constant i / 1000 and has the label i."""
    return from_arrays(np.arange(count).reshape(-1, 1, 1, 1) / 1000 * np.ones((1, 1, 4, 4)), np.arange(count))


@given(
    count=st.integers(1, 400), seed=st.integers(-(2**40), 2**40), parts=st.tuples(st.floats(0, 0.5), st.floats(0, 0.5))
)
def test_parts_are_disjoint_and_together_the_whole(count, seed, parts):
    calibration, validation = (int(part * count) for part in parts)
    views = split(numbered(count), calibration=calibration, validation=validation, seed=seed)
    assert [len(view) for view in views] == [calibration, validation, count - calibration - validation]
    assert sorted(index for view in views for index in view.indices.tolist()) == list(range(count))


def test_a_set_with_training_images_is_calibrated_on_those_and_tested_on_itself():
    data = load_data("cifar10-sample")
    calibration, validation, test = split(data, calibration=300, validation=200, seed=0)
    train = load_data("cifar10-sample:train")
    assert len(set(calibration.indices.tolist()) | set(validation.indices.tolist())) == 500
    assert torch.equal(calibration.batch([0, 1])[0], train.batch(calibration.indices[:2].tolist())[0])
    assert test.indices.tolist() == list(range(500))
    assert torch.equal(test.batch([7])[0], data.batch([7])[0])
    assert (calibration.name, test.name) == ("cifar10-sample:train/calibration", "cifar10-sample/test")


def test_a_limited_set_still_knows_its_training_images():
    calibration, _, test = split(load_data("cifar10-sample", limit=40), calibration=100, validation=0)
    assert calibration.data.name == "cifar10-sample:train"
    assert len(test) == 40


def test_a_named_split_is_divided_in_three():
    views = split(load_data("cifar10-sample:test"), calibration=300, validation=100, test=50)
    assert [len(view) for view in views] == [300, 100, 50]
    assert {view.data.name for view in views} == {"cifar10-sample:test"}
    assert len({index for view in views for index in view.indices.tolist()}) == 450


def test_test_images_are_drawn_at_random_when_counted():
    test = split(load_data("cifar10-sample"), calibration=1, validation=1, test=60, seed=5)[2]
    assert test.indices.tolist() == shuffled(500, 5)[:60].tolist()


@pytest.mark.parametrize(
    ("spec", "counts", "message"),
    [
        ("cifar10-sample", (400, 200, None), "cifar10-sample:train has 500 images, too few for 600"),
        ("cifar10-sample:test", (300, 100, 200), "too few for 600 .calibration 300, validation 100, test 200."),
        ("cifar10-sample", (1, 1, 501), "cifar10-sample has 500 images, too few for test 501"),
        ("cifar10-sample", (-1, 1, 1), "calibration must not be negative"),
    ],
)
def test_more_images_than_there_are_cannot_be_split_off(spec, counts, message):
    calibration, validation, test = counts
    with pytest.raises(InputError, match=message):
        split(load_data(spec), calibration=calibration, validation=validation, test=test)


def test_the_same_seed_gives_the_same_parts_and_another_seed_others():
    first, again, other = (split(numbered(100), 50, 10, seed=seed)[0].describe()["digest"] for seed in (0, 0, 1))
    assert first == again != other


def test_the_order_does_not_touch_or_read_global_random_state():
    torch.manual_seed(1)
    np.random.seed(1)
    first = shuffled(50, 3)
    state = torch.get_rng_state()
    torch.rand(3)
    np.random.rand(3)
    assert shuffled(50, 3).tolist() == first.tolist()
    torch.set_rng_state(state)


def splitmix64(value):
    """The published finaliser in plain integers."""
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB % 2**64
    return value ^ (value >> 31)


def test_the_order_is_that_of_splitmix64_in_plain_integers():
    start = int.from_bytes(hashlib.sha256(b"lipforge split 7").digest()[:8], "little")
    # So many that some keys differ only in their low bits, which the last step of the finaliser makes.
    keys = [splitmix64((index + start) * 0x9E3779B97F4A7C15 % 2**64) for index in range(200_000)]
    assert shuffled(200_000, 7).tolist() == sorted(range(200_000), key=keys.__getitem__)


def test_a_random_half_holds_no_more_low_indices_than_chance_allows():
    low = (shuffled(10_000, 0)[:5_000] < 5_000).sum()
    # Hypergeometric: mean 2500, standard deviation 25; four deviations.
    assert abs(low - 2500) < 100


def test_take_keeps_the_first_or_with_a_seed_random_images():
    data = numbered(20)
    assert take(data, 3).indices.tolist() == [0, 1, 2]
    assert take(data, 3, seed=1).indices.tolist() == shuffled(20, 1)[:3].tolist()
    assert len(take(data, 100)) == 20


def test_take_of_no_image_is_refused():
    with pytest.raises(InputError, match="limit must be at least 1"):
        take(numbered(3), 0)


def test_a_view_of_a_view_reads_from_the_set_below():
    data = numbered(10)
    inner = take(split(data, 2, 3, seed=0)[1], 2)
    assert inner.data is data
    assert inner.batch([1])[1].item() == split(data, 2, 3, seed=0)[1].indices[1]
    assert inner.training is None


def test_a_view_is_image_data_in_its_own_order():
    part = split(numbered(30), 10, 5, seed=2)[0]
    assert isinstance(part, ImageData)
    assert isinstance(part, View)
    labels = [batch.labels.tolist() for batch in batches(part, 4) if batch.labels is not None]
    assert list(chain(*labels)) == part.indices.tolist()
    assert [part[at][1] for at in range(10)] == part.indices.tolist()
    assert part[-1][0][0, 0, 0].item() == pytest.approx(part.indices[-1] / 1000)


def test_describe_is_json_and_pins_the_indices():
    part = take(numbered(5), 2)
    expected = hashlib.sha256(bytes(8) + (1).to_bytes(8, "little")).hexdigest()
    assert json.loads(json.dumps(part.describe())) == {
        "name": "arrays/first 2",
        "count": 2,
        "of": "arrays",
        "seed": None,
        "digest": expected,
    }


def test_a_position_outside_the_view_is_refused():
    with pytest.raises(InputError, match=r"indices must lie in 0\.\.1, got 2\.\.2"):
        take(numbered(5), 2).batch([2])


def test_what_is_no_data_set_is_named():
    with pytest.raises(InputError, match=r"data must be a data set .*got int"):
        take(3, 2)  # type: ignore[arg-type]  # the mistake is the point


def test_a_pair_of_tensors_is_a_data_set_too():
    images, labels = torch.rand(4, 1, 4, 4), torch.arange(4)
    assert take((images, labels), 2).batch([1])[1].tolist() == [1]
