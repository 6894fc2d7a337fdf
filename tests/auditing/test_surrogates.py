"""Gradients straight through rounding, with the values kept bit for bit, and a copy distilled on another's outputs."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from lipforge.auditing.surrogates import StraightThrough, distilled, through_rounding, with_gradient
from lipforge.types import Threat
from tests.attacks.oracles import small_images, small_net
from tests.nets import ResidualNet, images, seeded

THREAT = Threat("linf", 0.02)


@pytest.mark.parametrize(
    "change",
    [
        lambda x: torch.round(8 * x) / 8,
        lambda x: (8 * x).floor() / 8,
        lambda x: torch.ceil(8 * x) / 8,
        lambda x: torch.sign(x - 0.5),
        lambda x: (8 * x).trunc() / 8,
        lambda x: torch.fix(8 * x) / 8,
        lambda x: torch.sgn(x - 0.5),
        lambda x: (x > 0.5).float(),
        lambda x: torch.ge(x, 0.5).double(),
        lambda x: (x > 0.5).half(),
        lambda x: (x > 0.5).type_as(x),
        lambda x: (x > 0.5).type(torch.float32),
        lambda x: torch.stack([(x > level).to(x.dtype) for level in (0.25, 0.5, 0.75)]).sum(dim=0) / 3,
        lambda x: F.one_hot(x.argmax(dim=-1), 4).float(),
    ],
    ids=[
        "round",
        "floor",
        "ceil",
        "sign",
        "trunc",
        "fix",
        "sgn",
        "float",
        "double",
        "half",
        "type_as",
        "type",
        "thermometer",
        "argmax",
    ],
)
def test_values_stay_bit_for_bit_and_gradients_pass(change):
    x = torch.rand(2, 3, 4, 4, generator=torch.Generator().manual_seed(0)).requires_grad_()
    expected = change(x)
    assert not expected.requires_grad or not torch.autograd.grad(expected.sum(), x)[0].any()
    with StraightThrough() as mode:
        found = change(x)
    assert torch.equal(found, expected.detach())
    (gradient,) = torch.autograd.grad(found.sum(), x)
    assert mode.replaced > 0
    assert (gradient > 0).all()


def test_only_a_classifier_without_any_gradient_gets_one_of_0():
    net, x = small_net(), torch.rand(2, 3, 6, 6, generator=torch.Generator().manual_seed(0)).requires_grad_()

    def detached(images):
        return net(images.detach())

    def scaled(images):  # only what it has of its own has a gradient
        return weight * (images > 0.5).flatten(1).float()[:, :4]

    weight = torch.ones(1, requires_grad=True)
    assert with_gradient(net, x[:1]) is net
    for silent in (detached, scaled):
        found = with_gradient(silent, x[:1])
        assert torch.equal(found(x), silent(x))
        assert not torch.autograd.grad(found(x).sum(), x)[0].any()


@pytest.mark.parametrize("below", [lambda x: x < 0.5, lambda x: x <= 0.5], ids=["<", "<="])
def test_less_than_turns_the_gradient_round(below):
    x = torch.tensor([0.2, 0.8], requires_grad=True)
    with StraightThrough():
        (gradient,) = torch.autograd.grad(below(x).float().sum(), x)
    assert gradient.tolist() == [-1, -1]


@pytest.mark.parametrize(
    "change",
    [
        lambda x: (x > 0.5).to(torch.int64),
        lambda x: x.argmax(dim=-1).float(),
        lambda x: torch.round(x.detach()),
        lambda x: torch.gt(x, other=0.5).float(),
    ],
    ids=["integers", "another shape", "constants", "keyword"],
)
def test_what_it_cannot_pass_a_gradient_through_is_left_alone(change):
    x = torch.rand(2, 4, generator=torch.Generator().manual_seed(0)).requires_grad_()
    with StraightThrough() as mode:
        assert torch.equal(change(x), change(x.detach()))
    assert mode.replaced == 0


def test_a_classifier_that_rounds_gets_a_view_and_any_other_gets_none():
    net = small_net()
    x, _ = small_images(net, 2)

    def rounded(images):
        return net(torch.round(15 * images) / 15)

    assert through_rounding(net, x[:1]) is None
    view = through_rounding(rounded, x[:1])
    assert view is not None
    assert torch.equal(view(x), rounded(x))
    point = x.clone().requires_grad_()
    assert torch.autograd.grad(view(point).sum(), point)[0].any()


def test_a_distilled_copy_comes_closer_to_the_teacher_and_leaves_the_student_alone():
    teacher, student = small_net(), copy.deepcopy(small_net())
    x, _ = small_images(teacher, 40)
    for weight in student.parameters():
        torch.nn.init.normal_(weight, std=0.1, generator=torch.Generator().manual_seed(0))
    student.requires_grad_(False)  # as a model that is only attacked
    before = [weight.clone() for weight in student.parameters()]
    asked: list[torch.Tensor] = []

    def listening(images):
        asked.append(images)
        return teacher(images)

    found = distilled(student, listening, lambda at: x[at], 40, threat=THREAT, seed=0)
    assert found is not None
    distance, nearest = (asked[0][:, None] - x[None]).abs().flatten(2).amax(dim=2).min(dim=1)
    assert (distance > 0).all(), "noisy images"
    assert (distance <= THREAT.eps + 1e-6).all()
    assert len(nearest.unique()) > 20
    with torch.no_grad():
        far, near = (float((model(x).softmax(1) - teacher(x).softmax(1)).abs().mean()) for model in (student, found))
    assert near < 0.9 * far
    assert all(torch.equal(a, b) for a, b in zip(before, student.parameters(), strict=True))
    assert not found.training
    assert not any(weight.requires_grad for weight in found.parameters())


def test_what_cannot_be_copied_or_trained_is_not_distilled():
    net = small_net()
    x, _ = small_images(net, 2)
    assert distilled(lambda images: net(images), net, lambda at: x[at], 2, threat=THREAT, seed=0) is None
    assert distilled(nn.Flatten(), net, lambda at: x[at], 2, threat=THREAT, seed=0) is None

    class Idle(nn.Module):
        def __init__(self):
            super().__init__()
            self.unused = nn.Parameter(torch.zeros(1))

        def forward(self, images):
            return torch.zeros(len(images), 4)

    assert distilled(Idle(), net, lambda at: x[at], 2, threat=THREAT, seed=0) is None
    infinite = small_net()
    torch.nn.init.constant_(infinite[0].weight, torch.inf)  # type: ignore[index]  # a Sequential
    assert distilled(infinite, net, lambda at: x[at], 2, threat=THREAT, seed=0) is None


def test_comparisons_of_masks_are_left_alone():
    with StraightThrough():
        assert (torch.tensor([True, False]) > torch.tensor([False, False])).tolist() == [True, False]


def test_a_classifier_that_goes_through_numpy_has_a_gradient_of_0():
    net, x = seeded(ResidualNet), images(2)

    def through_numpy(images):
        with torch.no_grad():
            return net(torch.from_numpy(images.numpy()))

    found = with_gradient(through_numpy, x[:1])
    point = x.clone().requires_grad_()
    logits = found(point)
    assert torch.equal(logits, net(x))
    assert torch.equal(torch.autograd.grad(logits.sum(), point)[0], torch.zeros_like(x))


def test_other_errors_of_a_classifier_are_not_taken_for_a_missing_gradient():
    def broken(images):
        raise RuntimeError("shapes do not match")

    with pytest.raises(RuntimeError, match="shapes do not match"):
        with_gradient(broken, images(1))
