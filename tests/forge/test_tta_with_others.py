"""Test-time augmentation together with forging, other wrappers and attacks."""

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

import lipforge as lf
from lipforge.attacks.folding import prepare
from lipforge.errors import InputError, ModelError, SiteError
from lipforge.forge.calibrate import calibrate_, forge_
from lipforge.forge.fold import count_zeros
from lipforge.forge.insert import forges, insert_, remove_
from lipforge.forge.sites import Site, find_sites
from lipforge.forge.tta import TTA, set_tta_, tta_of
from lipforge.models.architectures import bundled_names
from tests.forge.test_insert import forged_model
from tests.forge.test_tta import MANY, MIRROR, changed
from tests.nets import PlainNet, ResidualNet, Transformer, images, seeded


@pytest.mark.parametrize("build", [ResidualNet, Transformer, PlainNet])
def test_sites_are_those_of_the_model_without_it(build):
    def places(model):
        return [(site.name, site.rule, site.in_features, site.channel_dim) for site in find_sites(model)]

    assert places(changed(build=build)) == places(seeded(build))


def test_forging_counts_images_and_sees_all_their_copies():
    model = changed()
    recipe = forge_(model, images(6), batch_size=4)
    assert recipe.images_seen == 6
    both = torch.cat([images(6), images(6).flip(-1)])
    assert recipe.bounds == pytest.approx(forge_(seeded(ResidualNet), both).bounds, rel=1e-6)
    assert count_zeros(model, images(6)).elements["block1.conv1"] == 2 * 6 * 32 * 32


def test_a_failed_forging_leaves_it_in_place():
    model = changed()
    with pytest.raises(InputError, match="ratio"):
        forge_(model, images(2), ratio=7)
    assert forges(model) == {}
    assert tta_of(model) == MIRROR


def test_it_works_on_top_of_forged_functions_and_below_them():
    above, below, x = forged_model(ratio=0.5), changed(), images(2)
    set_tta_(above, "mirror")
    insert_(below, find_sites(below), ratio=0.5)
    for name, forge in forges(below).items():
        forge.set_bound(forges(above)[name].bound)
    assert torch.equal(above(x), below(x))
    calibrate_(above, images(8))
    for model in (above, below):
        remove_(model)
        assert type(model) is ResidualNet
        assert torch.equal(model(x), seeded(ResidualNet)(x))


def test_a_single_layer_has_either_a_mask_or_tta():
    site = Site("", "name:*", "Linear", 4, (), -1)
    forged, averaged = nn.Linear(4, 2).eval(), nn.Linear(4, 2).eval()
    insert_(forged, [site])
    with pytest.raises(SiteError, match=r"single forged layer.*wrap it in a module"):
        set_tta_(forged, "mirror")
    assert len(forges(forged)) == 1
    set_tta_(averaged, "mirror")
    with pytest.raises(SiteError, match=r"single layer with TTA.*wrap it in a module"):
        insert_(averaged, [site])
    assert forges(averaged) == {}


def test_a_class_that_changed_later_is_named_and_nothing_is_removed():
    model = nn.Linear(4, 2)
    set_tta_(model, "mirror")
    weight_norm(model)
    with pytest.raises(SiteError, match=r"changed its class after it got TTA.*undo that first"):
        remove_(model)
    assert tta_of(model) == MIRROR


def test_models_whose_class_cannot_be_changed_are_refused():
    own_forward: Any = seeded(ResidualNet)
    own_forward.forward = lambda x: x
    graph = torch.fx.symbolic_trace(seeded(ResidualNet)).eval()
    with pytest.raises(SiteError, match="forward set on the object"):
        set_tta_(own_forward, "mirror")
    with pytest.raises(ModelError, match=r"torch\.fx graph.*wrap it in a module"):
        set_tta_(graph, "mirror")
    wrapped = nn.Sequential(graph).eval()
    set_tta_(wrapped, "mirror")
    torch.testing.assert_close(copy.deepcopy(wrapped)(images(2)), changed()(images(2)), atol=1e-6, rtol=0)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch warns of its own scripts
def test_a_scripted_model_is_refused():
    with pytest.raises(ModelError, match="scripted model cannot be changed"):
        set_tta_(torch.jit.trace(seeded(ResidualNet), images(1)), "mirror")


@pytest.mark.parametrize("mean", ["logits", "probabilities"])
def test_an_exported_model_has_it(mean):
    model, x = changed(TTA(MANY.transforms, mean), PlainNet), images(3)
    program = torch.export.export(model, (x,))
    torch.testing.assert_close(program.module()(x), model(x))
    assert (model(x) - seeded(PlainNet)(x)).abs().max() > 1e-3


def test_attacks_search_on_a_folded_copy_that_has_it():
    model, x = changed("mirror x diagonals"), images(3, size=8)
    prepared = prepare(model, x)
    assert prepared.folded is not model
    torch.testing.assert_close(prepared.folded(x), model(x), atol=1e-5, rtol=0)
    assert (model(x) - seeded(ResidualNet)(x)).abs().max() > 1e-3
    labels = model(x).argmax(1)
    result = lf.evaluate(model, (x, labels), lf.fast(), lf.Threat("linf", "1/255"), show_progress=False)
    assert result.clean_accuracy == 1.0
    assert 0 <= result.robust_accuracy <= 1


@pytest.mark.parametrize("name", bundled_names())
def test_bundled_models_can_have_it(name):
    model, x = lf.load_model(name), images(2)
    base = model(x)
    expected = (base + model(x.flip(-1))) / 2
    set_tta_(model, "mirror")
    torch.testing.assert_close(model(x), expected, atol=1e-5, rtol=0)
    assert (expected - base).abs().max() > 1e-3
    set_tta_(model, None)
    assert torch.equal(model(x), base)
