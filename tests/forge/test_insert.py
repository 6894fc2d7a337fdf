"""Forged functions in and out of a model: the forward pass they make, which layers take them, ratios and errors."""

from typing import Any

import pytest
import torch
from torch import nn

from lipforge.errors import InputError, SiteError
from lipforge.forge.calibrate import calibrate_, forge_
from lipforge.forge.insert import forges, insert_, remove_, set_mode_, set_ratio_
from lipforge.forge.masks import MeanCentred, Piecewise, Step
from lipforge.forge.sites import Site, find_sites
from lipforge.forge.views import forged, plain, straight_through
from tests.nets import PlainNet, ResidualNet, ReusingNet, TorchAttentionNet, Transformer, images, seeded

RATIO = 2**-3


def forged_model(build=ResidualNet, ratio=RATIO, **arguments):
    model = seeded(build, **arguments)
    insert_(model, find_sites(model), ratio=ratio)
    calibrate_(model, images(32))
    return model


def by_hand(model: ResidualNet, x, mask=None):
    """The forged forward pass of ResidualNet written out, with thresholds from the model's own forges."""
    f = torch.nn.functional
    mask = mask or Step()
    found = forges(model)

    def conv(block, name, t):
        layer = getattr(getattr(model, block), name)
        t = mask(t, found[f"{block}.{name}"].threshold)
        return f.conv2d(t, layer.weight, layer.bias, padding=1)

    x = f.relu(model.stem(x))
    for block in ("block1", "block2"):
        parts = getattr(model, block)
        out = parts.bn2(conv(block, "conv2", f.relu(parts.bn1(conv(block, "conv1", x)))))
        x = f.relu(out + parts.shortcut(x))
    return model.head(x.mean(dim=(2, 3)))


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("mask", [Step(), Piecewise(0.5)])
def test_the_forged_forward_pass_is_the_one_written_by_hand(inplace, mask):
    model = seeded(ResidualNet, inplace=inplace)
    insert_(model, find_sites(model), mask=mask, ratio=RATIO)
    calibrate_(model, images(32))
    x = images(4, seed=1)
    expected = by_hand(model, x, mask)
    assert torch.equal(model(x), expected)
    assert not torch.equal(plain(model)(x), expected)


def test_inserted_but_not_calibrated_changes_no_bit():
    model, x = seeded(ResidualNet), images(4)
    before = model(x)
    insert_(model, find_sites(model), ratio=RATIO)
    assert torch.equal(model(x), before)


def test_ratio_zero_changes_no_bit():
    model, x = seeded(ResidualNet), images(4)
    before = model(x)
    insert_(model, find_sites(model), ratio=0.0)
    calibrate_(model, images(32))
    assert torch.equal(model(x), before)


@pytest.mark.parametrize("build", [ResidualNet, Transformer, ReusingNet, TorchAttentionNet])
def test_remove_restores_state_and_logits_exactly(build):
    model, x = seeded(build), images(4)
    keys, before = list(model.state_dict()), model(x)
    state = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    attributes = {name: set(vars(module)) for name, module in model.named_modules()}
    insert_(model, find_sites(model), ratio=RATIO)
    calibrate_(model, images(32))
    assert not torch.equal(model(x), before)
    remove_(model)
    assert torch.equal(model(x), before)
    assert list(model.state_dict()) == keys
    assert all(torch.equal(state[key], tensor) for key, tensor in model.state_dict().items())
    assert {name: set(vars(module)) for name, module in model.named_modules()} == attributes
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_remove_leaves_the_hooks_of_others_alone():
    model, calls = seeded(ResidualNet), []
    model.block1.conv1.register_forward_pre_hook(lambda layer, args: calls.append(1))
    insert_(model, find_sites(model))
    remove_(model)
    calls.clear()
    model(images(1))
    assert calls == [1]


@pytest.mark.parametrize("mask", [Step(), Piecewise(), MeanCentred()])
def test_in_place_activations_can_be_sites_in_every_view(mask):
    model, x = seeded(PlainNet), images(4).requires_grad_()
    insert_(model, find_sites(model, rules=["activations"]), mask=mask, ratio=0.25)
    calibrate_(model, images(16))
    (direct,) = torch.autograd.grad(forged(model)(x).sum(), x)
    (through,) = torch.autograd.grad(straight_through(model)(x).sum(), x)
    assert torch.equal(forged(model)(x), straight_through(model)(x))
    # Behind a Step the ReLU sees exactly 0, whose slope it takes as 0: there BPDA has nothing to pass on.
    assert torch.equal(direct, through) == isinstance(mask, Step)


def test_an_in_place_activation_still_writes_where_the_shortcut_reads():
    class Aliased(ReusingNet):
        def __init__(self) -> None:
            super().__init__()
            self.relu = nn.ReLU(inplace=True)

        def forward(self, x):
            x = self.stem(x)
            return self.head((self.conv(self.relu(x)) + x).mean(dim=(2, 3)))

    model, x = seeded(Aliased), images(4)
    insert_(model, find_sites(model, rules=["activations"]), ratio=2**-20)
    calibrate_(model, images(16))
    torch.testing.assert_close(model(x), seeded(Aliased)(x), atol=1e-4, rtol=0)


def test_a_shared_activation_takes_a_step_but_no_mean_per_channel():
    class Shared(PlainNet):
        def forward(self, x):
            relu, layers = self.layers[1], self.layers
            return layers[7](relu(layers[5](relu(layers[2](relu(layers[0](x)))).flatten(1))))

    model = seeded(Shared)
    insert_(model, find_sites(model, rules=["activations"]), ratio=0.1)
    assert calibrate_(model, images(8)).sites["layers.1"].in_features == 0
    remove_(model)
    with pytest.raises(SiteError, match=r"'layers\.1' is called with different numbers of channels.*exclude"):
        forge_(model, images(8), mask=MeanCentred(), rules=["activations"])
    assert forges(model) == {}


def test_an_error_while_attaching_takes_everything_out_again(monkeypatch):
    model = seeded(ResidualNet)
    sites = list(find_sites(model))
    monkeypatch.setattr(model.block2.conv1, "register_forward_pre_hook", lambda *a, **k: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        insert_(model, sites)
    assert forges(model) == {}
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_a_layer_called_with_a_keyword_is_forged():
    class Keyword(ReusingNet):
        def forward(self, x):
            x = self.stem(input=x)
            return self.head((x + self.conv(input=x.relu())).mean(dim=(2, 3)))

    model = forged_model(Keyword, ratio=0.5)
    assert not torch.equal(model(images(2)), plain(model)(images(2)))


def test_attention_modules_are_forged_at_query_key_and_value():
    model = seeded(TorchAttentionNet)
    insert_(model, find_sites(model, rules=["attention_projections"]), ratio=0.25)
    calibrate_(model, images(32))
    forge = forges(model)["encoder.self_attn"]
    tokens = torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(0))
    unforged: Any = plain(model)
    expected = unforged.encoder.self_attn(*[Step()(tokens, forge.threshold)] * 3)[0]
    assert torch.equal(model.encoder.self_attn(tokens, tokens, tokens)[0], expected)
    assert torch.equal(model.encoder.self_attn(query=tokens, key=tokens, value=tokens)[0], expected)
    assert not torch.equal(model(images(2)), plain(model)(images(2)))


def test_attention_projections_and_shortcuts_can_be_forged():
    for build, rules in ((Transformer, ["attention_projections"]), (ResidualNet, ["shortcut_convs"])):
        model, x = seeded(build), images(4)
        before = model(x)
        insert_(model, find_sites(model, rules=rules), ratio=0.25)
        calibrate_(model, images(32))
        assert not torch.equal(model(x), before)


def test_ratios_can_be_set_for_all_for_one_and_by_glob():
    model = forged_model()
    set_ratio_(model, {"*": 0.1, "block2.*": 0.2, "block2.conv2": 0.3})
    assert [forge.ratio for forge in forges(model).values()] == [0.1, 0.1, 0.2, 0.3]
    set_ratio_(model, 0.5)
    assert {forge.ratio for forge in forges(model).values()} == {0.5}


@pytest.mark.parametrize(
    ("ratio", "error", "message"),
    [
        (1.5, InputError, r"ratio must be a number in \[0, 1\], got 1.5"),
        ({"block1.*": -1}, InputError, "got -1"),
        ({"block1.*": 0.3, "block9.*": 0.5}, SiteError, "no forged site matches 'block9.*'; sites are 'block1.conv1'"),
    ],
)
def test_a_wrong_ratio_changes_nothing(ratio, error, message):
    model = forged_model()
    with pytest.raises(error, match=message):
        set_ratio_(model, ratio)
    assert {forge.ratio for forge in forges(model).values()} == {RATIO}


def broken_site(**changes) -> Site:
    fields = {"name": "head", "rule": "x", "layer": "Linear", "in_features": 16, "input_shape": (), "channel_dim": -1}
    return Site(**{**fields, **changes})


@pytest.mark.parametrize(
    ("last", "message"),
    [
        (broken_site(name="nowhere"), "no module 'nowhere'"),
        (broken_site(layer="Conv2d"), "site 'head' should be a Conv2d, but the model has a Linear"),
        (broken_site(name="block1.conv1", layer="Conv2d"), "'block1.conv1' more than once"),
    ],
)
def test_a_model_is_never_left_half_inserted(last, message):
    model = seeded(ResidualNet)
    with pytest.raises(SiteError, match=message):
        insert_(model, [*find_sites(model), last])
    assert forges(model) == {}
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_inserting_twice_is_refused():
    model = forged_model()
    with pytest.raises(SiteError, match=r"'block1\.conv1' is forged already"):
        insert_(model, find_sites(model))
    assert len(forges(model)) == 4


def test_no_sites_and_no_forges_are_named():
    with pytest.raises(SiteError, match="sites must not be empty"):
        insert_(seeded(ResidualNet), [])
    with pytest.raises(SiteError, match="no forged functions; insert them with forge_"):
        set_ratio_(seeded(ResidualNet), 0.5)


def test_a_wrong_ratio_at_insertion_leaves_the_model_alone():
    model = seeded(ResidualNet)
    with pytest.raises(InputError, match="ratio"):
        insert_(model, find_sites(model), ratio=2.0)
    assert forges(model) == {}


def test_modes_can_be_set_for_all():
    model, x = forged_model(), images(2)
    set_mode_(model, "plain")
    assert torch.equal(model(x), seeded(ResidualNet)(x))
