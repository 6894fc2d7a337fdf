"""Forged functions in models that torch compiled, before or after."""

from typing import cast

import pytest
import torch
from torch import nn

from lipforge.forge.calibrate import calibrate_
from lipforge.forge.insert import forges, insert_, remove_, set_ratio_
from lipforge.forge.recipe import recipe_of
from lipforge.forge.sites import find_sites
from lipforge.forge.views import plain, straight_through
from tests.forge.test_insert import forged_model
from tests.nets import ResidualNet, images, seeded


def test_compiled_after_insertion_equals_eager():
    model, x = forged_model(), images(4)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    assert torch.allclose(compiled(x), model(x), atol=1e-6)
    set_ratio_(model, 0.0)
    assert torch.allclose(compiled(x), seeded(ResidualNet)(x), atol=1e-6)
    set_ratio_(model, 0.5)
    assert torch.allclose(compiled(x), model(x), atol=1e-6)


def test_insertion_into_a_compiled_model_takes_effect():
    model, x = seeded(ResidualNet), images(4)
    compiled = cast(nn.Module, torch.compile(model, backend="aot_eager"))
    unforged = compiled(x)
    insert_(compiled, find_sites(compiled), ratio=0.5)
    calibrate_(compiled, images(32))
    assert torch.allclose(compiled(x), forged_model(ratio=0.5)(x), atol=1e-6)
    remove_(compiled)
    assert torch.equal(compiled(x), unforged)


@pytest.mark.filterwarnings(
    "ignore:.*should not be instantiated:DeprecationWarning"
)  # torch's compiler warns of itself
def test_compiled_straight_through_has_the_eager_gradient():
    view, x = straight_through(forged_model()), images(2).requires_grad_()
    compiled = torch.compile(view, backend="aot_eager", fullgraph=True)
    (expected,) = torch.autograd.grad(view(x).sum(), x)
    (gradient,) = torch.autograd.grad(compiled(x).sum(), x)
    torch.testing.assert_close(gradient, expected)


def compile_in_place(model):
    model.compile(backend="aot_eager")
    return model


def compile_a_part(model):
    model.block1 = torch.compile(model.block1, backend="aot_eager")
    return model


@pytest.mark.parametrize("compiled", [compile_in_place, compile_a_part])
def test_a_recipe_takes_effect_however_the_model_was_compiled(compiled):
    recipe, x = recipe_of(forged_model(ratio=0.5)), images(4)
    model = compiled(seeded(ResidualNet))
    with torch.no_grad():
        model(x)
        insert_(model, [site for site in find_sites(model) if site.name.startswith("block2")], ratio=0.5)
        for name, forge in forges(model).items():
            forge.set_bound(torch.tensor(recipe.bounds[name]))
        expected = plain(forged_model(ratio=0.5))
        insert_(expected, [site for site in find_sites(expected) if site.name.startswith("block2")], ratio=0.5)
        for name, forge in forges(expected).items():
            forge.set_bound(torch.tensor(recipe.bounds[name]))
        torch.testing.assert_close(model(x), expected(x))
        assert not torch.equal(model(x), seeded(ResidualNet)(x))


def test_a_function_compiled_around_the_model_sees_the_forged_functions():
    model, x = seeded(ResidualNet), images(4)
    function = torch.compile(lambda t: model(t), backend="aot_eager")
    with torch.no_grad():
        function(x)
        recipe_of(forged_model(ratio=0.5)).apply_(model)
        torch.testing.assert_close(function(x), forged_model(ratio=0.5)(x))
