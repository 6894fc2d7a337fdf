"""Gradients that predict the model, and gradients that do not."""

import pytest
import torch
from torch import Tensor, nn

from lipforge.attacks.losses import targeted_margin_loss, targets_by_rank
from lipforge.attacks.masking import masked_gradients, mispredicted
from lipforge.attacks.state import AttackState, toward
from lipforge.types import Threat
from tests.attacks.oracles import small_images, small_net

THREAT = Threat("linf", 0.01)


class Altered(nn.Module):
    """A net behind a change of its images, or of their gradient."""

    def __init__(self, net: nn.Module, change) -> None:
        super().__init__()
        self.net, self.change = net, change

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.net(self.change(x))
        return logits


def scaled_gradient(factor: float):
    """The images as they are, with a gradient of `factor` times the true one."""
    return lambda x: x.detach() + factor * (x - x.detach())


def staircase(x: Tensor, levels: float = 500.0, steepness: float = 60.0) -> Tensor:
    """16 levels or so per eps: mean slope 1, but flat between steep steps."""
    level = torch.floor(levels * x.detach())
    return (level + torch.sigmoid(steepness * (levels * x - level - 0.5))) / levels


def state_of(model: nn.Module, threat: Threat = THREAT) -> AttackState:
    x, y = small_images(small_net(), 24)
    state = AttackState(model.eval(), x, y, threat=threat, seed=0, sample_ids=torch.arange(24))
    state.clean_logits()
    return state


@pytest.mark.parametrize("threat", [THREAT, Threat("l2", 0.1)], ids=str)
def test_gradients_of_an_honest_net_predict_it(threat):
    state = state_of(small_net(), threat)
    assert len(state.robust()) > 12
    found = masked_gradients(state)
    assert not found.any.any()
    assert not found.too_much.any()


@pytest.mark.parametrize(
    ("name", "change", "too_much"),
    [
        ("too large", scaled_gradient(2.0), True),
        ("too small", scaled_gradient(0.5), False),
        ("negated", scaled_gradient(-1.0), True),
        ("zero", scaled_gradient(0.0), True),
        ("noise", lambda x: x + 0.002 * torch.sin(6000 * x), True),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_gradients_that_do_not_predict_the_net_are_found(name, change, too_much):
    state = state_of(Altered(small_net(), change))
    robust, found = state.robust(), masked_gradients(state)
    assert found.any[robust].all()
    assert found.too_much[robust].all() == too_much


def test_a_staircase_is_found_by_its_flat_entries_alone():
    state = state_of(Altered(small_net(), staircase))
    robust = state.robust()
    assert masked_gradients(state).any[robust].float().mean() > 0.9


def test_entries_without_a_gradient_are_found_though_no_step_moves_them():
    def some(x):
        kept = (torch.arange(x[0].numel()) % 2 == 0).reshape(x.shape[1:])
        return torch.where(kept, x, x.detach())

    state = state_of(Altered(small_net(), some))
    robust = state.robust()
    assert masked_gradients(state).any[robust].all()


def test_a_gradient_is_exact_on_a_linear_model_at_any_step():
    linear = nn.Sequential(nn.Flatten(), nn.Linear(12, 3)).double()
    x = 0.4 + 0.2 * torch.rand(5, 3, 2, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    y = linear(x).argmax(dim=1)
    state = AttackState(linear, x, y, threat=Threat("linf", 0.1), seed=0, sample_ids=torch.arange(5))
    goal = toward(state, targeted_margin_loss, targets_by_rank(state, 1)[0])
    too_much, too_little = mispredicted(state, x, torch.arange(5), goal)
    assert not (too_much | too_little).any()


def test_broken_images_are_not_looked_at():
    state = state_of(Altered(small_net(), scaled_gradient(0.0)))
    state.broken[:] = True
    before = int(state.forwards.sum())
    assert not masked_gradients(state).any.any()
    assert int(state.forwards.sum()) == before
