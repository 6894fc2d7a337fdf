"""Another last layer against a linear map of the features, and the model's own layer that comes back."""

import copy
import io
import pickle
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from lipforge.errors import InputError, SiteError
from lipforge.forge.calibrate import calibrate_
from lipforge.forge.head import Head, head_of, set_head_
from lipforge.forge.insert import forges, insert_, remove_
from lipforge.forge.recipe import architecture_digest, weights_digest
from lipforge.forge.sites import Site
from lipforge.runs.identity import model_identity
from tests.forge.test_tta import state_of
from tests.nets import ResidualNet, images, seeded

NUMBERS = torch.Generator().manual_seed(7)
WEIGHT, BIAS = torch.randn(10, 16, generator=NUMBERS), torch.randn(10, generator=NUMBERS)
HEAD = Head("head", WEIGHT, BIAS)


def changed(head: Head = HEAD) -> Any:
    model = seeded(ResidualNet)
    set_head_(model, head)
    return model


def features(model: nn.Module, x: Tensor) -> Tensor:
    """What arrives at the last layer, by a hook of the test's own."""
    caught: list[Tensor] = []
    with model.get_submodule("head").register_forward_pre_hook(lambda layer, args: caught.append(args[0])):
        model(x)
    return caught[0]


def without_bias() -> ResidualNet:
    model = ResidualNet()
    model.head = nn.Linear(16, 10, bias=False)
    return model


def test_the_logits_are_the_new_map_of_the_same_features():
    x = images(3)
    assert torch.equal(changed()(x), F.linear(features(seeded(ResidualNet), x), WEIGHT, BIAS))


def test_a_layer_without_a_bias_gets_none():
    model, x = seeded(without_bias), images(3)
    expected = F.linear(features(model, x), WEIGHT)
    set_head_(model, Head("head", WEIGHT, None))
    assert torch.equal(model(x), expected)
    assert model.head.bias is None
    set_head_(model, None)
    assert torch.equal(model(x), seeded(without_bias)(x))


@pytest.mark.parametrize("remove", [remove_, lambda model: set_head_(model, None)])
def test_removal_is_exact(remove):
    model, x = seeded(ResidualNet), images(3)
    own = model.head.weight.data_ptr()
    before, logits = state_of(model), model(x)
    set_head_(model, HEAD)
    remove(model)
    after = state_of(model)
    assert after[0] == before[0]
    assert [(name, kind, list(values)) for name, kind, values in after[1]] == [
        (name, kind, list(values)) for name, kind, values in before[1]
    ]
    assert after[2:] == before[2:]
    assert torch.equal(model(x), logits)
    assert model.head.weight.data_ptr() == own  # what is tied to it stays tied
    assert head_of(model) is None


def test_keys_do_not_change_and_digests_are_those_of_the_base():
    model, base = changed(), seeded(ResidualNet)
    assert list(model.state_dict()) == list(base.state_dict())
    assert [name for name, _ in model.named_parameters()] == [name for name, _ in base.named_parameters()]
    assert architecture_digest(model) == architecture_digest(base)
    assert weights_digest(model) == weights_digest(base)
    with torch.no_grad():
        model.head.own_head.weight.add_(1)
    assert weights_digest(model) != weights_digest(base)


def test_digests_of_a_layer_with_two_names_are_those_of_the_base():
    class TwoNames(ResidualNet):
        def __init__(self) -> None:
            super().__init__()
            self.again = self.head

    model = seeded(TwoNames)
    before, x = weights_digest(model), images(2)
    set_head_(model, Head("again", WEIGHT, BIAS))
    assert weights_digest(model) == before
    assert torch.equal(model(x), changed()(x))
    set_head_(model, None)
    assert torch.equal(model(x), seeded(ResidualNet)(x))


def test_a_run_tells_models_with_other_heads_apart():
    other = changed(Head("head", WEIGHT, BIAS + 1))
    assert len({str(model_identity(model)) for model in (seeded(ResidualNet), changed(), other)}) == 3


def test_one_head_takes_the_place_of_another():
    model, x = changed(), images(2)
    second = Head("head", 2 * WEIGHT, -BIAS)
    set_head_(model, second)
    assert head_of(model) == second
    assert torch.equal(model(x), changed(second)(x))
    set_head_(model, None)
    assert torch.equal(model(x), seeded(ResidualNet)(x))


def test_heads_are_equal_by_their_numbers():
    assert Head("head", WEIGHT.clone(), BIAS.clone()) == HEAD
    assert head_of(changed()) == HEAD
    for other in (
        Head("fc", WEIGHT, BIAS),
        Head("head", WEIGHT + 1, BIAS),
        Head("head", WEIGHT, BIAS + 1),
        Head("head", WEIGHT, None),
        None,
    ):
        assert other != HEAD


def test_model_and_head_share_no_memory():
    """Training one model must not change a recipe, nor another model that has the same head."""
    weight = WEIGHT.clone()
    head = Head("head", weight, BIAS)
    model, twin = changed(head), changed(head)
    taken = head_of(model)
    with torch.no_grad():
        weight.zero_()
        model.head.weight.mul_(2)
        model.head.bias.zero_()
    assert taken == head == HEAD == head_of(twin)
    assert head_of(model) == Head("head", 2 * WEIGHT, torch.zeros(10))


@pytest.mark.parametrize("trained", [True, False])
def test_requires_grad_is_kept(trained):
    model = seeded(ResidualNet)
    model.requires_grad_(trained)
    set_head_(model, Head("head", WEIGHT.clone().requires_grad_(), BIAS))
    assert {parameter.requires_grad for parameter in model.parameters()} == {trained}
    remove_(model)
    assert {parameter.requires_grad for parameter in model.parameters()} == {trained}


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_copies_have_it_and_are_independent(duplicate):
    model, x = changed(), images(2)
    other = duplicate(model)
    assert torch.equal(other(x), model(x))
    set_head_(other, None)
    assert torch.equal(other(x), seeded(ResidualNet)(x))
    assert head_of(model) == HEAD


def test_a_saved_model_has_it_and_its_own():
    buffer = io.BytesIO()
    torch.save(changed(), buffer)
    buffer.seek(0)
    loaded, x = torch.load(buffer, weights_only=False), images(2)
    assert torch.equal(loaded(x), changed()(x))
    remove_(loaded)
    assert torch.equal(loaded(x), seeded(ResidualNet)(x))


def test_a_forged_last_layer_can_have_one():
    model, x = seeded(ResidualNet), images(3)
    insert_(model, [Site("head", "name:head", "Linear", 16, (), -1)], ratio=0.5)
    calibrate_(model, images(16))
    threshold = float(forges(model)["head"].threshold)
    set_head_(model, HEAD)
    masked = F.hardshrink(features(seeded(ResidualNet), x), threshold)
    assert not torch.equal(masked, features(seeded(ResidualNet), x))
    assert torch.equal(model(x), F.linear(masked, WEIGHT, BIAS))
    remove_(model)
    assert type(model.head) is nn.Linear
    assert torch.equal(model(x), seeded(ResidualNet)(x))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_conversion_reaches_the_models_own_layer(dtype):
    model, x = changed().to(dtype), images(2).to(dtype)
    assert model(x).dtype == dtype
    remove_(model)
    assert torch.equal(model(x), seeded(ResidualNet).to(dtype)(x))
    assert weights_digest(model) == weights_digest(seeded(ResidualNet).to(dtype))


def test_a_head_takes_the_type_of_the_model_and_is_kept_in_float32():
    model = seeded(ResidualNet).double()
    set_head_(model, Head("head", WEIGHT.double() / 3, BIAS.double()))
    found = head_of(model)
    assert model.head.weight.dtype == torch.float64
    assert found is not None
    assert found.weight.dtype == torch.float32
    assert torch.equal(found.weight, (WEIGHT.double() / 3).float())


@pytest.mark.parametrize(
    ("head", "message"),
    [
        (Head("fc", WEIGHT, BIAS), "linear layer 'fc', and the model has nothing there"),
        (Head("stem", WEIGHT, BIAS), "linear layer 'stem', and the model has a Conv2d there"),
        (Head("head", WEIGHT[:5], BIAS[:5]), r"'head' has \(5, 16\) and a bias, but the model's layer has \(10, 16\)"),
        (Head("head", WEIGHT[:, :8], BIAS), r"'head' has \(10, 8\) and a bias"),
        (Head("head", WEIGHT, None), r"\(10, 16\) and no bias, but the model's layer has \(10, 16\) and a bias"),
    ],
)
def test_a_head_that_does_not_fit_is_refused_and_nothing_changes(head, message):
    for model, before in ((seeded(ResidualNet), None), (changed(), HEAD)):
        with pytest.raises(SiteError, match=message):
            set_head_(model, head)
        assert head_of(model) == before
        remove_(model)
        assert torch.equal(model(images(1)), seeded(ResidualNet)(images(1)))


def test_a_layer_that_computes_its_weight_is_refused():
    model = seeded(ResidualNet)
    weight_norm(model.head)
    with pytest.raises(SiteError, match="'head' computes its weight from others"):
        set_head_(model, HEAD)


@pytest.mark.parametrize(
    ("weight", "bias", "message"),
    [
        (WEIGHT[0], None, r"a weight \(K, F\) and a bias \(K,\), got \[\(16,\)\]"),
        (WEIGHT, BIAS[:3], r"got \[\(10, 16\), \(3,\)\]"),
        (WEIGHT / 0, BIAS, "'head' must hold finite numbers"),
        (WEIGHT, BIAS * torch.nan, "'head' must hold finite numbers"),
        (WEIGHT.double() * 1e300, BIAS, "'head' must hold finite numbers"),  # not in float32
        (WEIGHT.long(), BIAS, r"tensors of floating point, got \[torch.int64, torch.float32\]"),
        ([[1.0]], None, r"tensors of floating point, got \['list'\]"),
    ],
)
def test_numbers_that_are_no_head_are_refused(weight, bias, message):
    with pytest.raises(InputError, match=message):
        Head("head", weight, bias)


def test_removal_gives_back_the_parameters_that_optimizers_and_tied_layers_know():
    model = seeded(ResidualNet)
    model.tied = model.head
    weight, bias = model.head.weight, model.head.bias
    set_head_(model, Head("head", torch.zeros(10, 16), torch.zeros(10)))
    assert model.head.weight is not weight
    set_head_(model, None)
    assert model.head.weight is weight
    assert model.head.bias is bias
    set_head_(model, Head("head", torch.zeros(10, 16), torch.zeros(10)))
    model.double()  # the objects stay behind, the numbers come along
    set_head_(model, None)
    assert torch.equal(model.head.weight, weight.double())
