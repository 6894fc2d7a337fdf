"""A batch shared among threads: the same logits and gradients, and nothing left behind."""

import threading

import pytest
import torch
from torch import nn

from lipforge.attacks import APGD, FAB, Square, autoattack, prepare
from lipforge.attacks.prepare import Rounded
from lipforge.attacks.split import Split
from lipforge.errors import ModelError
from lipforge.types import Threat
from tests.attacks.oracles import small_images, small_net
from tests.nets import ReusingNet, images, seeded


@pytest.fixture(autouse=True)
def _two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def _gradient(model, x):
    x = x.clone().requires_grad_()
    logits = model(x)
    return logits.detach(), *(torch.autograd.grad(logits[:, k].sum(), x, retain_graph=True)[0] for k in (0, 1))


@pytest.mark.parametrize("count", [1, 3, 4, 7, 24])
def test_logits_and_gradients_are_those_of_the_model(count):
    model = small_net().double()
    x = small_images(small_net(), count)[0].double()
    split = Split([small_net().double() for _ in range(3)])
    for found, expected in zip(_gradient(split, x), _gradient(model, x), strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    with torch.no_grad():
        logits = split(x)
    torch.testing.assert_close(logits, model(x), rtol=0, atol=1e-12)
    assert not logits.requires_grad


def test_the_copies_work_in_threads_of_their_own_each_on_its_share():
    seen, both = [], threading.Barrier(2, timeout=60)

    def copy(x):
        both.wait()  # neither goes on before the other has begun
        seen.append((threading.current_thread().name, len(x), torch.get_num_threads()))
        return x.flatten(1)[:, :3]

    Split([copy, copy])(torch.zeros(9, 3, 2, 2))
    assert sorted(size for _, size, _ in seen) == [4, 5]
    assert len({name for name, _, _ in seen}) == 2
    assert all(threads == 1 for _, _, threads in seen)


def test_the_number_of_threads_stays_as_it_was_here_and_in_new_threads():
    Split([small_net(), small_net()])
    found = []
    thread = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    assert (torch.get_num_threads(), found) == (2, [2])


def test_during_an_attack_the_calling_thread_works_alone_and_afterwards_as_before():
    seen = []

    class Watching(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = small_net()

        def forward(self, x):
            seen.append(torch.get_num_threads())
            return self.net(x)

    model = Watching().eval()
    x, y = small_images(model.net, 12)
    autoattack("fast").run(model, x, y, threat=Threat("linf", 0.02))
    assert seen[0] == 2  # the clean images
    assert set(seen[-3:]) == {1}
    assert torch.get_num_threads() == 2


def test_an_error_in_a_thread_is_raised_here():
    def broken(x):
        raise RuntimeError("no such layer")

    with pytest.raises(RuntimeError, match="no such layer"):
        Split([broken, broken])(torch.zeros(4, 3, 2, 2))


def test_a_model_without_gradients_is_still_refused_by_name():
    x, y = small_images(small_net())
    rounded = Split([lambda images: images.flatten(1)[:, :4].detach().round()] * 2)
    with pytest.raises(ModelError, match="gives no gradient"):
        APGD(steps=2).run(rounded, x, y, threat=Threat("linf", 0.01))


@pytest.mark.parametrize("attack", [APGD(steps=5), FAB(steps=5, targets=0), Square(queries=50)], ids=lambda a: a.name)
def test_attacks_find_the_same_on_a_shared_batch(attack):
    x, y = small_images(small_net(), 40)
    model, x = small_net().double(), x.double()
    split = Split([small_net().double() for _ in range(2)])
    plain, shared = (attack.run(each, x, y, threat=Threat("linf", 0.015)) for each in (model, split))
    torch.testing.assert_close(shared.images, plain.images, rtol=0, atol=1e-12)
    assert 2 < plain.fooled.sum() < 40


def test_a_prepared_model_has_a_copy_per_thread_that_shares_every_weight():
    model = small_net()
    x, _ = small_images(model)
    quick = prepare(model, x).quick
    assert isinstance(quick, Split)
    first, second = (copy.module for copy in quick.copies)  # type: ignore[attr-defined]
    assert first is not second
    assert all(a is b for a, b in zip(first.parameters(), second.parameters(), strict=True))
    torch.testing.assert_close(quick(x), model(x), rtol=1e-4, atol=1e-5)


def test_with_several_threads_a_model_without_norms_is_shared_too_and_half_precision_reaches_the_threads():
    model = seeded(ReusingNet)
    shared = prepare(model, images(6)).quick
    assert isinstance(shared, Split)
    rounded = prepare(model, images(6), precision="bfloat16").quick
    assert isinstance(rounded, Split)
    assert all(isinstance(copy, Rounded) for copy in rounded.copies)
    with torch.no_grad():
        full, half = model(images(6)), rounded(images(6))
    assert half.dtype == torch.float32
    assert 0 < (half - full).abs().max() < 0.05 * full.abs().max()
