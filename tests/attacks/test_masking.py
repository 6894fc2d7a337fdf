"""Gradients that predict the model, and gradients that do not."""

import pytest
import torch
from torch import Tensor, nn

from lipforge.attacks.folding import Autocast
from lipforge.attacks.losses import targeted_margin_loss, targets_by_rank
from lipforge.attacks.masking import _small_entries, masked_gradients, masked_images, mispredicted, unannounced
from lipforge.attacks.queries import Prepared
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


def scaled_gradient(factor: float | Tensor):
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


class Decoy(nn.Module):
    """The class of a net, and logits of all others that are linear in the image and know nothing of the net."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.line = nn.Linear(108, 4)

    def forward(self, x: Tensor) -> Tensor:
        top = nn.functional.one_hot(self.net(x).argmax(dim=1), 4).bool()
        others: Tensor = 0.01 * self.line(x.flatten(1)) - 1
        return torch.where(top, torch.zeros_like(others), others)


def test_logits_that_do_not_announce_a_change_of_class_are_found_though_their_gradients_are_true():
    state = state_of(Decoy(small_net()))
    goal = toward(state, targeted_margin_loss, targets_by_rank(state, 1)[0])
    at = state.robust()
    too_much, too_little = mispredicted(state, state.x[at], at, goal)
    assert not (too_much | too_little).any()
    assert masked_gradients(state).any[at].float().mean() > 0.8


def test_logits_that_are_constant_up_to_the_boundary_announce_nothing():
    class Sharp(nn.Module):
        def forward(self, logits: Tensor) -> Tensor:
            return torch.softmax(1e4 * logits, dim=1)

    state = state_of(nn.Sequential(small_net(), Sharp()))
    assert unannounced(state, state.robust()).float().mean() > 0.8


def test_the_margin_of_an_honest_net_announces_a_change_of_class_at_few_forwards():
    state = state_of(small_net())
    at = state.robust()
    before = state.forwards[at].clone()
    assert not unannounced(state, at).any()
    spent = state.forwards[at] - before
    assert spent.min() == 12  # the far point, 9 bisections, and two points on the way
    assert spent.max() <= 24


def test_nothing_is_found_where_the_class_never_changes():
    def constant(x: Tensor) -> Tensor:
        return torch.tensor([0.0, 2.0, 1.0]).expand(len(x), -1)

    x, y = torch.full((4, 3, 2, 2), 0.4), torch.ones(4, dtype=torch.int64)
    state = AttackState(constant, x, y, threat=THREAT, seed=0, sample_ids=torch.arange(4))
    assert not unannounced(state, torch.arange(4)).any()


def test_announcing_does_not_depend_on_the_batch():
    state = state_of(Decoy(small_net()))
    at = state.robust()
    assert torch.equal(unannounced(state, at)[3:5], unannounced(state, at[3:5]))


WEIGHTS = torch.tensor([1.0, 0.2] * 6, dtype=torch.float64)
"""Half of the entries of a linear model that are large, and half that are small."""


def linear_mispredicted(change, x=None) -> tuple[bool, bool]:
    """Whether gradients predict too much, and too little, of the rise of a linear model behind a change; eps is 0.1."""
    linear = nn.Sequential(nn.Flatten(), nn.Linear(12, 2, bias=False)).double()
    linear[1].weight.data = torch.stack([-WEIGHTS, WEIGHTS])
    x = torch.full((1, 3, 2, 2), 0.5, dtype=torch.float64) if x is None else x
    y, at = torch.zeros(1, dtype=torch.int64), torch.arange(1)
    state = AttackState(Altered(linear, change).eval(), x, y, threat=Threat("linf", 0.1), seed=0, sample_ids=at)
    goal = toward(state, targeted_margin_loss, torch.ones(1, dtype=torch.int64))
    too_much, too_little = mispredicted(state, x, at, goal)
    return bool(too_much), bool(too_little)


def test_small_entries_that_can_do_more_than_their_gradient_says_are_found():
    """Along the whole gradient the rise is 0.6 / 0.51 of the prediction; in the small entries alone it is 10 times."""
    hidden = torch.where(WEIGHTS == 1, 1.0, 0.1).reshape(3, 2, 2)
    assert linear_mispredicted(lambda x: x) == (False, False)
    assert linear_mispredicted(scaled_gradient(hidden)) == (False, True)


def test_a_rise_that_ends_before_eps_is_found():
    assert linear_mispredicted(lambda x: 0.5 + (x - 0.5).clamp(-0.04, 0.04)) == (False, False)
    assert linear_mispredicted(lambda x: 0.5 + (x - 0.5).clamp(-0.026, 0.026)) == (True, False)


def test_small_entries_at_the_edge_of_the_box_tell_nothing():
    edge = torch.where(WEIGHTS == 1, 0.5, 1.0).double().reshape(1, 3, 2, 2)
    assert linear_mispredicted(lambda x: x, edge) == (False, False)


def test_small_entries_are_the_lower_half_of_those_with_a_gradient():
    gradient = torch.tensor([0.0, 0.0, 1.0, -2.0, 3.0, 4.0, 5.0, -6.0, 7.0, 8.0]).reshape(1, 1, 2, 5)
    assert _small_entries(gradient).flatten().tolist() == [False] * 2 + [True] * 4 + [False] * 4


def test_gradients_that_are_true_at_the_image_alone_are_found_near_it():
    clean, _ = small_images(small_net(), 24)

    def only_there(x):
        there = (x[:, None] == clean[None]).flatten(2).all(dim=2).any(dim=1)
        return torch.where(there[:, None, None, None], x, scaled_gradient(2.0)(x))

    state = state_of(Altered(small_net(), only_there))
    robust = state.robust()
    assert masked_gradients(state).too_much[robust].all()


def test_a_folded_copy_in_half_precision_is_looked_at_in_full():
    net = small_net()
    x, y = small_images(net, 4)
    folded = Autocast(net, "bfloat16")
    state = AttackState(Prepared(net, folded), x, y, threat=THREAT, seed=0, sample_ids=torch.arange(4))
    state.clean_logits()
    assert not masked_gradients(state).any.any()
    assert state.folded is folded, "which attacks go on searching on"
    coarse = AttackState(lambda x: folded(x), x, y, threat=THREAT, seed=0, sample_ids=torch.arange(4))
    coarse.clean_logits()
    assert masked_gradients(coarse).any.any(), "or there would be nothing to look past"


def test_attacks_search_on_what_is_looked_at():
    net, folded = small_net(), small_net()
    x, y = small_images(net, 4)
    state = AttackState(Prepared(net, folded), x, y, threat=THREAT, seed=0, sample_ids=torch.arange(4))
    state.clean_logits()
    net.register_forward_hook(lambda *_: pytest.fail("the model itself was asked"))
    assert not masked_gradients(state).any.any()


@pytest.mark.parametrize("edge", [0.19, 0.29, 0.37, 0.47])
@pytest.mark.parametrize("dip", [1.0, 0.3])
def test_a_margin_that_is_full_shortly_before_the_change_announces_nothing(edge, dip):
    """Also if it was smaller further away, or is smaller in the last 64th of the way."""

    def cliff(x):
        left = (edge - x.mean(dim=(1, 2, 3))) / edge  # the share of the way from a black image that is left
        margin = torch.where((left > 0.1) & (left < 0.7), dip, 1.0)
        return torch.stack([torch.where(left > 1 / 66, margin, 66 * left), torch.zeros_like(left)], dim=1)

    def slope(x):
        left = edge - x.mean(dim=(1, 2, 3))
        return torch.stack([left, torch.zeros_like(left)], dim=1)

    x, y = torch.zeros(1, 3, 4, 4), torch.zeros(1, dtype=torch.int64)
    for model, expected in ((cliff, True), (slope, False)):
        state = AttackState(model, x, y, threat=THREAT, seed=0, sample_ids=torch.arange(1))
        state.clean_logits()
        assert unannounced(state, torch.arange(1)).item() == expected


def test_masked_images_predict_too_little_or_too_much_and_are_classified_correctly():
    model = Altered(small_net(), scaled_gradient(0.5)).eval()
    x, y = small_images(small_net(), 6)
    y[:2] = (y[:2] + 1) % 4
    found = masked_images(model, x, y, threat=THREAT, seed=0, sample_ids=torch.arange(6))
    assert found.tolist() == [False, False, True, True, True, True]


def test_broken_images_are_not_looked_at():
    state = state_of(Altered(small_net(), scaled_gradient(0.0)))
    state.broken[:] = True
    before = int(state.forwards.sum())
    assert not masked_gradients(state).any.any()
    assert int(state.forwards.sum()) == before
