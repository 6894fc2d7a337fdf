"""Adversarial weight perturbation against a computation by hand."""

import copy

import torch
import torch.nn.functional as F

from lipforge.training import TrainConfig
from lipforge.training.awp import perturbed_weights, weight_perturbation
from lipforge.training.objectives import objective
from tests.training.toys import toy_images, toy_net


def test_a_perturbation_points_along_the_gradient_and_has_the_given_relative_length():
    weight, gradient = torch.tensor([[3.0, 4.0]]), torch.tensor([[0.0, -0.1]])
    (change,) = weight_perturbation([weight], [gradient], size=0.01)
    torch.testing.assert_close(change, torch.tensor([[0.0, -0.05]]))


def test_the_awp_gradient_is_the_gradient_at_the_perturbed_weights():
    model, config = toy_net().double().train(), TrainConfig(method="pgd-at", awp=0.02)
    x, y = toy_images(32)
    x = x.double()
    twin = copy.deepcopy(model)
    buffers = [buffer.clone() for buffer in model.buffers()]
    before = [weight.detach().clone() for weight in model.parameters()]
    with perturbed_weights(model, objective(model, x, x, y, config=config)[0], config.awp, buffers):
        objective(model, x, x, y, config=config)[0].backward()

    by_hand = copy.deepcopy(twin)
    F.cross_entropy(twin(x), y).backward()
    with torch.no_grad():
        for weight, source in zip(by_hand.parameters(), twin.parameters(), strict=True):
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
