"""Counter-based random numbers: published answers, distribution, independence, and no dependence on the batch."""

import pytest
import torch
from scipy import stats

from lipforge import rng
from lipforge.errors import InputError

IDS = torch.arange(200)


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
    ids=["zeros", "ones", "pi"],
)
def test_philox_gives_the_known_answers_of_the_random123_test_vectors(counter, key, expected):
    words = rng.philox([torch.tensor([word]) for word in counter], key)
    assert tuple(int(word) for word in words) == expected


def test_uniform_numbers_pass_a_kolmogorov_smirnov_test():
    numbers = rng.uniform(0, IDS, stream="a", shape=(500,), low=-2.0, high=3.0).flatten().double()
    assert stats.kstest(numbers.numpy(), stats.uniform(-2.0, 5.0).cdf).pvalue > 0.01


def test_uniform_numbers_stay_inside_their_bounds_and_are_multiples_of_2_to_the_minus_24():
    numbers = rng.uniform(1, IDS, stream="a", shape=(500,)).double()
    assert numbers.min() >= 0
    assert numbers.max() < 1
    assert torch.equal(numbers * 2**24, (numbers * 2**24).round())


def test_normal_numbers_pass_a_kolmogorov_smirnov_test():
    numbers = rng.normal(0, IDS, stream="a", shape=(500,), dtype=torch.float64)
    assert stats.kstest(numbers.flatten().numpy(), "norm").pvalue > 0.01


def test_signs_are_balanced():
    up = int((rng.signs(0, IDS, stream="a", shape=(500,)) > 0).sum())
    assert stats.binomtest(up, 100_000, 0.5).pvalue > 0.01


def test_integers_are_equally_likely():
    counts = rng.integers(0, IDS, stream="a", shape=(500,), below=9).flatten().bincount(minlength=9)
    assert counts.sum() == 100_000
    assert stats.chisquare(counts.numpy()).pvalue > 0.01


def test_every_bit_of_a_word_is_balanced():
    words = rng.bits(0, IDS, stream="a", shape=(500,)).flatten()
    ones = [int((words >> bit & 1).sum()) for bit in range(32)]
    # 32 tests at once: the smallest p-value of 32 uniform ones lies above 0.01 / 32 with probability 0.99.
    assert min(stats.binomtest(count, 100_000, 0.5).pvalue for count in ones) > 0.01 / 32


def _pairs():
    base = {"seed": 0, "sample_ids": IDS, "stream": "a", "counter": 0}
    return {
        "seeds": (base, {**base, "seed": 1}),
        "streams": (base, {**base, "stream": "b"}),
        "counters": (base, {**base, "counter": 1}),
        "ids": (base, {**base, "sample_ids": IDS + 200}),
        "ids that differ in the high word only": (base, {**base, "sample_ids": IDS + 2**32}),
    }


@pytest.mark.parametrize("what", _pairs())
def test_numbers_are_independent_across(what):
    first, second = (_uniform(**settings) for settings in _pairs()[what])
    assert stats.spearmanr(first, second).pvalue > 0.01
    table = torch.zeros(8, 8)
    table.view(-1).index_add_(0, ((first * 8).long() * 8 + (second * 8).long()), torch.ones(len(first)))
    assert stats.chisquare(table.flatten().numpy()).pvalue > 0.01


def test_neighbouring_numbers_of_one_image_are_independent():
    numbers = rng.uniform(0, IDS, stream="a", shape=(501,))
    assert stats.spearmanr(numbers[:, :-1].flatten(), numbers[:, 1:].flatten()).pvalue > 0.01


@pytest.mark.parametrize("draw", [rng.uniform, rng.normal, rng.signs, rng.bits])
def test_an_image_gets_the_same_numbers_in_any_batch(draw):
    together = draw(3, IDS, stream="a", shape=(3, 5, 5))
    order = rng.permutation(0, 200, stream="order")
    torch.testing.assert_close(draw(3, IDS[order], stream="a", shape=(3, 5, 5)), together[order], rtol=0, atol=0)
    torch.testing.assert_close(draw(3, IDS[7:8], stream="a", shape=(3, 5, 5)), together[7:8], rtol=0, atol=0)


def test_a_longer_shape_begins_with_the_numbers_of_a_shorter_one():
    assert torch.equal(rng.uniform(0, IDS, stream="a", shape=(10,))[:, :3], rng.uniform(0, IDS, stream="a", shape=(3,)))


def test_the_global_generator_is_neither_read_nor_changed():
    state = torch.get_rng_state()
    rng.normal(0, IDS, stream="a", shape=(4,))
    rng.permutation(0, 10, stream="a")
    assert torch.equal(torch.get_rng_state(), state)


def test_a_permutation_holds_every_index_once_and_differs_from_epoch_to_epoch():
    first, second = (rng.permutation(0, 1000, stream="order", counter=epoch) for epoch in (0, 1))
    assert torch.equal(first.sort().values, torch.arange(1000))
    assert not torch.equal(first, second)


def test_permutations_are_equally_likely():
    orders = [tuple(rng.permutation(0, 3, stream="order", counter=shuffle).tolist()) for shuffle in range(1200)]
    counts = [orders.count(order) for order in sorted(set(orders))]
    assert len(counts) == 6
    assert stats.chisquare(counts).pvalue > 0.01


def test_sample_ids_of_another_type_are_refused():
    with pytest.raises(InputError, match="sample_ids must be int64"):
        rng.uniform(0, torch.arange(3).float(), stream="a", shape=(1,))


def test_every_image_may_have_a_counter_of_its_own():
    ids, counter = torch.tensor([5, 5, 9]), torch.tensor([0, 3, 3])
    together = rng.normal(1, ids, stream="s", shape=(7,), counter=counter)
    for row in range(3):
        alone = rng.normal(1, ids[row : row + 1], stream="s", shape=(7,), counter=int(counter[row]))
        assert torch.equal(together[row : row + 1], alone)
    with pytest.raises(InputError, match=r"counter must be an int or int64 of shape \(N,\), got torch.int64 of \(2,\)"):
        rng.bits(1, ids, stream="s", shape=(7,), counter=counter[:2])


def test_a_negative_counter_is_refused():
    with pytest.raises(InputError, match="counter must lie in"):
        rng.uniform(0, IDS, stream="a", shape=(1,), counter=-1)


def test_an_empty_range_of_integers_is_refused():
    with pytest.raises(InputError, match="below must lie in"):
        rng.integers(0, IDS, stream="a", shape=(1,), below=0)


def _uniform(*, seed, sample_ids, stream, counter):
    return rng.uniform(seed, sample_ids, stream=stream, shape=(500,), counter=counter).flatten()
