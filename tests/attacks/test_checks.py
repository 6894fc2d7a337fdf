"""Each warning is raised by a model that deserves it, and by no other."""

import cProfile

import pytest
import torch
from torch import nn

from lipforge.attacks import APGD, PGD, AttackWarning, Prepared
from lipforge.attacks.checks import class_notes, model_notes, square_notes
from lipforge.attacks.state import AttackState
from lipforge.results import Stage, merge_notes
from lipforge.types import Threat
from tests.attacks.oracles import small_images, small_net

THREAT = Threat("linf", 0.01)


def _notes(model, **settings):
    x, y = small_images(small_net())
    state = AttackState(model, x, y, threat=THREAT, seed=0, sample_ids=torch.arange(len(x)))
    return model_notes(state, **settings)


def _random(x):
    return small_net()(x) + 0.1 * torch.randn(len(x), 4)


def _probabilities(x):
    return small_net()(x).softmax(dim=1)


def _adaptive(x):
    net = small_net()
    with torch.enable_grad():
        seen = x.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(net(seen).amax(dim=1).sum(), seen)
    return net(x + 0.01 * gradient.sign())


def _adaptive_by_backward(x):
    with torch.enable_grad():
        seen = x.detach().requires_grad_()
        small_net()(seen).amax(dim=1).sum().backward()
    return small_net()(x + 0.01 * seen.grad.sign())


@pytest.mark.parametrize(
    ("model", "kind", "message"),
    [
        (_random, "random_outputs", "differ between repeated forwards"),
        (_probabilities, "softmax", "look like probabilities"),
        (_adaptive, "adaptive_model", "gradients inside its forward"),
        (_adaptive_by_backward, "adaptive_model", "gradients inside its forward"),
    ],
)
def test_a_suspicious_model_is_noted_for_the_one_thing_it_does(model, kind, message):
    notes = _notes(model)
    assert len(notes) == 1
    assert message in str(notes[0])
    assert notes[0].kind == kind


def test_an_honest_model_is_not_noted():
    assert _notes(small_net()) == []


def test_a_random_model_is_not_noted_where_randomness_is_expected():
    assert _notes(_random, random_expected=True) == []


def test_the_model_itself_is_looked_at_and_not_its_folded_copy():
    net = small_net()
    assert _notes(Prepared(net, lambda x: net(x).bfloat16().float())) == []
    assert _notes(Prepared(net, _random)) == []
    (note,) = _notes(Prepared(_random, net))
    assert note.kind == "random_outputs"


def test_the_checks_of_the_model_are_counted():
    x, y = small_images(small_net(), 40)
    state = AttackState(small_net(), x, y, threat=THREAT, seed=0, sample_ids=torch.arange(40))
    model_notes(state)
    assert state.forwards.tolist() == [3] * 32 + [1] * 8


class Rounding(nn.Module):
    """A net whose gradient is 0 everywhere, and whose decisions move all the same."""

    def __init__(self):
        super().__init__()
        self.net = small_net()

    def forward(self, x):
        return self.net((x * 255).round() / 255)


def test_zero_gradients_are_noted_with_their_number():
    model = Rounding().eval()
    x, _ = small_images(small_net())
    result = APGD(steps=3).run(model, x, model(x).argmax(dim=1), threat=THREAT)
    (note,) = result.notes
    assert note.kind == "zero_gradient"
    assert str(note).startswith("24 of 24 images had a gradient of exactly 0 and are robust only to attacks")


def test_a_call_that_would_lose_a_note_warns():
    x, y = small_images(small_net())
    with pytest.warns(AttackWarning, match="gradient of exactly 0"):
        PGD(steps=2)(Rounding().eval(), x, y, threat=THREAT)


def _stages(*left):
    names = ("clean", "apgd", "fab", "square")
    return [Stage(name, robust, 1, 1, 0.0) for name, robust in zip(names, left, strict=True)]


def test_a_square_that_breaks_more_than_two_in_a_thousand_is_noted():
    assert merge_notes(square_notes(_stages(900, 600, 600, 598), 1000), 1000) == ()
    (note,) = merge_notes(square_notes(_stages(900, 600, 600, 597), 1000), 1000)
    assert str(note).startswith("3 of 1000 images were broken by Square, which uses no gradients")


def test_in_a_part_of_the_images_every_one_that_square_breaks_is_noted():
    (note,) = square_notes(_stages(900, 600, 600, 598), 1000)
    assert (note.kind, note.count, note.total) == ("square", 2, 1000)
    assert square_notes(_stages(900, 600, 600, 600), 1000) == []


def test_what_the_probe_breaks_counts_as_squares():
    names = ("clean", "apgd", "probe", "square")
    stages = [Stage(name, robust, 1, 1, 0.0) for name, robust in zip(names, (900, 600, 598, 597), strict=True)]
    assert merge_notes(square_notes(stages[:3], 1000), 1000) == ()
    (note,) = square_notes(stages, 1000)
    assert note.count == 3


def test_a_square_that_comes_first_is_not_noted():
    first = [Stage("clean", 10, 1, 0, 0.0), Stage("square", 2, 1, 0, 0.0), Stage("apgd", 1, 1, 1, 0.0)]
    assert square_notes(first, 10) == []


def test_few_classes_are_noted_with_what_changes():
    assert class_notes(10, targets=9) == []
    (five,) = class_notes(5, targets=9)
    assert five.kind == "few_classes"
    assert str(five) == "the model has 5 classes: targeted attacks have 4 targets instead of 9"
    (two,) = class_notes(2, targets=9)
    assert "1 targets instead of 9" in two.text
    assert "needs 4 classes" in two.text
    assert "needs 3 classes" in two.text


def test_a_model_can_be_looked_at_under_a_profiler():
    with cProfile.Profile() as profile:
        assert _notes(small_net()) == []
    assert any("model_notes" in str(entry.code) for entry in profile.getstats())
