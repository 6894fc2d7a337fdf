"""Adversarial weight perturbation against a computation by hand; several processes do what one does."""

import copy
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

from lipforge.batching import as_data
from lipforge.errors import InputError
from lipforge.ranks import Rank
from lipforge.training import TrainConfig, train
from lipforge.training.objectives import objective
from lipforge.training.session import open_session
from lipforge.training.step import agree, average_, perturbed_weights, weight_perturbation
from tests.torchrun import torchrun
from tests.training.test_run import CONFIG, DATA
from tests.training.toys import toy_images, toy_net

RUN = """
import sys, torch
from dataclasses import replace
from lipforge.ranks import leave
from lipforge.training import train
from tests.training.test_run import CONFIG, DATA
from tests.training.toys import toy_net
torch.set_num_threads(1)
model = toy_net(norm=False).double()
train(model, (DATA[0].double(), DATA[1]), replace(CONFIG, epochs=1, awp=0.01), out=sys.argv[1])
leave(0)
"""


def test_two_processes_train_to_the_weights_of_one(tmp_path):
    script = tmp_path / "run.py"
    script.write_text(RUN)
    code, errors = torchrun(2, str(script), str(tmp_path / "two"))
    assert code == 0, errors
    # Without batch norm the mean of two half batches' gradients is the whole batch's; float64 keeps the sums equal.
    model = toy_net(norm=False).double()
    one = train(model, (DATA[0].double(), DATA[1]), replace(CONFIG, epochs=1, awp=0.01), out=tmp_path / "one")
    single, double = load_file(one.weights), load_file(tmp_path / "two" / "weights.safetensors")
    for name in single:
        torch.testing.assert_close(double[name], single[name], rtol=1e-9, atol=1e-12)


def test_the_shares_of_a_batch_are_equal_and_make_up_the_batch():
    shares = [torch.arange(12)[Rank(rank, 3).share(12)] for rank in range(3)]
    assert {len(part) for part in shares} == {4}
    assert torch.equal(torch.cat(shares).sort().values, torch.arange(12))


def test_one_process_averages_and_agrees_with_itself():
    tensor = torch.tensor([1.0, 2.0])
    average_([tensor])
    assert tensor.tolist() == [1.0, 2.0]
    assert agree([0.5, 0.25], torch.device("cpu")) == [0.5, 0.25]


def test_a_batch_that_cannot_be_shared_equally_is_refused(tmp_path):
    with pytest.raises(InputError, match="multiple of the 2 processes, got 7"):
        open_session(toy_net(), as_data(DATA), replace(CONFIG, batch_size=7), tmp_path, Rank(0, 2))


def test_a_perturbation_points_along_the_gradient_and_has_the_given_relative_length():
    weight, gradient = torch.tensor([[3.0, 4.0]]), torch.tensor([[0.0, -0.1]])
    (change,) = weight_perturbation([weight], [gradient], size=0.01)
    torch.testing.assert_close(change, torch.tensor([[0.0, -0.05]]))


def test_the_awp_gradient_is_the_gradient_at_the_perturbed_weights():
    model, config = toy_net().double().train(), TrainConfig(method="pgd-at", awp=0.02)
    x, y = toy_images(32)
    x = x.double()
    start = copy.deepcopy(model)
    buffers = [buffer.clone() for buffer in model.buffers()]
    before = [weight.detach().clone() for weight in model.parameters()]
    with perturbed_weights(model, objective(model, x, x, y, config=config)[0], config.awp, buffers):
        objective(model, x, x, y, config=config)[0].backward()

    by_hand = copy.deepcopy(start)
    F.cross_entropy(start(x), y).backward()
    with torch.no_grad():
        for weight, source in zip(by_hand.parameters(), start.parameters(), strict=True):
            if weight.ndim > 1 and source.grad is not None:
                weight.add_(0.02 * weight.norm() * source.grad / source.grad.norm())
    F.cross_entropy(by_hand(x), y).backward()

    for weight, expected, old in zip(model.parameters(), by_hand.parameters(), before, strict=True):
        torch.testing.assert_close(weight.grad, expected.grad)
        assert torch.equal(weight, old)
    # The batch norm saw one batch, not two: the pass that found the perturbation does not count.
    for buffer, wanted in zip(model.buffers(), by_hand.buffers(), strict=True):
        torch.testing.assert_close(buffer, wanted)


def test_the_perturbation_raises_the_loss():
    model, config = toy_net().train(), TrainConfig(method="pgd-at")
    x, y = toy_images(64)
    loss, _ = objective(model, x, x, y, config=config)
    with perturbed_weights(model, loss, 0.05, [buffer.clone() for buffer in model.buffers()]):
        raised, _ = objective(model, x, x, y, config=config)
    assert raised > loss + 0.01
