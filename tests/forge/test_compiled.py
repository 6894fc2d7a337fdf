"""Forged functions in models that torch compiled, before or after; the eager model says what is right."""

import shutil
from typing import cast

import pytest
import torch
import torch._dynamo
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounter

from lipforge.analysis import analyse
from lipforge.forge.calibrate import calibrate_
from lipforge.forge.fold import count_zeros
from lipforge.forge.head import Head, set_head_
from lipforge.forge.insert import forges, insert_, remove_, set_mode_, set_ratio_
from lipforge.forge.recipe import recipe_of
from lipforge.forge.sites import find_sites
from lipforge.forge.tta import TTA, Transform, set_tta_
from lipforge.forge.views import forged, plain, smooth_backward, straight_through, with_tta
from tests.forge.test_insert import forged_model
from tests.nets import PlainNet, ResidualNet, ReusingNet, TorchAttentionNet, images, seeded

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's compiler warns of torch


@pytest.fixture(autouse=True)
def _nothing_compiled():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def assert_tells_the_truth(compiled, eager, x):
    """Compiled as often as it takes to settle: some guards are checked in another way from the second call on."""
    for _ in range(3):
        torch.testing.assert_close(compiled(x), eager(x), atol=1e-5, rtol=0)


@pytest.mark.parametrize("order", [1, -1])
def test_views_compiled_in_one_process_keep_their_own_logits(order):
    model, other, x = forged_model(ratio=0.5), forged_model(ratio=0.25), images(4)
    views = [plain(model), forged(model), forged(other), seeded(ResidualNet)]  # the last was never forged
    compiled = {torch.compile(view, backend="aot_eager"): view for view in views[::order]}
    with torch.no_grad():
        for function, view in [*compiled.items(), *compiled.items()]:  # and again, after all of them were compiled
            assert_tells_the_truth(function, view, x)
        base, high, low = (view(x) for view in views[:3])
    assert min((base - high).abs().max(), (base - low).abs().max(), (high - low).abs().max()) > 1e-3


@pytest.mark.skipif(not shutil.which("g++"), reason="inductor needs a C++ compiler")
@pytest.mark.parametrize("order", [1, -1])
def test_inductor_tells_views_apart(order):
    model, x = forged_model(ReusingNet, ratio=0.5), images(2)
    views = [plain(model), forged(model)][::order]
    with torch.no_grad():
        for view in views:
            assert_tells_the_truth(torch.compile(view), view, x)
        assert (views[0](x) - views[1](x)).abs().max() > 1e-3


@pytest.mark.parametrize("order", [1, -1])
def test_views_compiled_in_one_process_keep_their_own_gradients(order):
    model, x = forged_model(ratio=0.5), images(2).requires_grad_()
    gradients: list[Tensor] = []
    for view in [plain(model), forged(model), straight_through(model), smooth_backward(model)][::order]:
        compiled = torch.compile(view, backend="aot_eager", fullgraph=True)
        torch.testing.assert_close(compiled(x), view(x))
        expected, gradient = (torch.autograd.grad(each(x).sum(), x)[0] for each in (view, compiled))
        torch.testing.assert_close(gradient, expected)
        assert not any(torch.allclose(gradient, earlier) for earlier in gradients)
        gradients.append(gradient)


@pytest.mark.parametrize("rules", [["mlp_linears"], ["attention_projections"]])
def test_views_of_torchs_own_attention_keep_their_own_logits(rules):
    model, x = seeded(TorchAttentionNet), images(4)
    insert_(model, find_sites(model, rules=rules), ratio=0.25)
    calibrate_(model, images(32))
    with torch.no_grad():
        for view in (plain(model), forged(model)):
            assert_tells_the_truth(torch.compile(view, backend="aot_eager", fullgraph=True), view, x)
        assert (plain(model)(x) - forged(model)(x)).abs().max() > 1e-3


@pytest.mark.parametrize("recursive_tags", [False, True])
def test_a_compiled_model_follows_every_change(recursive_tags):
    """Recursive tags, the default of some versions of torch, look at a layer's class only if its __dict__ changed."""
    if not hasattr(torch._dynamo.config, "use_recursive_dict_tags_for_guards"):
        pytest.skip("this torch has no recursive dict tags")
    recipe, model, x = recipe_of(forged_model(ratio=0.5)), seeded(ResidualNet), images(4)
    compiled = torch.compile(model, backend="eager")
    changes = [
        lambda: None,
        lambda: recipe.apply_(model),
        lambda: set_ratio_(model, 0.25),
        lambda: set_mode_(model, "plain"),
        lambda: set_mode_(model, "smooth_backward"),
        lambda: remove_(model),
        lambda: recipe.apply_(model),
    ]
    with torch.no_grad(), torch._dynamo.config.patch(use_recursive_dict_tags_for_guards=recursive_tags):
        for change in changes:
            change()
            assert_tells_the_truth(compiled, model, x)


def test_compiled_code_of_others_is_kept():
    counter, x = CompileCounter(), images(4)
    model, twin = forged_model(ratio=0.5), torch.compile(seeded(ResidualNet), backend=counter)
    first = torch.compile(forged(model), backend=counter)
    with torch.no_grad():
        twin(x), first(x)
        assert counter.frame_count == 2
        for view in (plain, forged, straight_through, smooth_backward):
            view(model)
        remove_(forged_model())
        twin(x), first(x)
        torch.compile(forged(model), backend=counter)(x)  # another view, the same code
    assert counter.frame_count == 2


def test_more_views_than_torch_recompiles_for_run_eagerly_and_right():
    model, counter, x = forged_model(), CompileCounter(), images(4)
    with torch.no_grad(), torch._dynamo.config.patch(recompile_limit=2):
        for ratio in (0.1, 0.2, 0.3, 0.4, 0.5):
            set_ratio_(model, ratio)
            for view in (plain(model), forged(model)):
                assert_tells_the_truth(torch.compile(view, backend=counter), view, x)
    assert counter.frame_count == 2


def test_insertion_into_a_compiled_model_takes_effect():
    model, x = seeded(ResidualNet), images(4)
    compiled = cast(nn.Module, torch.compile(model, backend="aot_eager"))
    unforged = compiled(x)
    insert_(compiled, find_sites(compiled), ratio=0.5)
    calibrate_(compiled, images(32))
    assert torch.allclose(compiled(x), forged_model(ratio=0.5)(x), atol=1e-6)
    remove_(compiled)
    assert torch.equal(compiled(x), unforged)


def compile_in_place(model):
    model.compile(backend="eager")
    return model


def compile_a_part(model):
    model.block1.compile(backend="eager")
    return model


def wrap_a_part(model):
    model.block1 = torch.compile(model.block1, backend="eager")
    return model


@pytest.mark.parametrize("compiled", [compile_in_place, compile_a_part, wrap_a_part])
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


@pytest.mark.parametrize("compiled", [compile_in_place, wrap_a_part])
def test_what_is_measured_inside_a_compiled_model_is_what_an_eager_one_has(compiled):
    """Compiled code does not call hooks that were added later; everything that watches a model needs them."""
    eager, model, x = forged_model(ratio=0.5), compiled(seeded(ResidualNet)), images(4)
    insert_(model, find_sites(model), ratio=0.5)
    assert list(calibrate_(model, images(32)).bounds.values()) == list(recipe_of(eager).bounds.values())
    with torch.no_grad():
        model(x)
    assert list(count_zeros(model, x).zeros.values()) == list(count_zeros(eager, x).zeros.values())
    found, expected = (analyse(each, x, spectral_images=0).layers for each in (model, eager))
    assert [layer.zero_clean for layer in found] == [layer.zero_clean for layer in expected]


def test_calibration_compiles_nothing():
    """Trackers change with every batch: compiling them would use up the recompilations that torch allows a layer."""
    model, counter = seeded(ResidualNet), CompileCounter()
    model.compile(backend=counter)
    insert_(model, find_sites(model))
    calibrate_(model, images(8), batch_size=2)
    assert counter.frame_count == 0


def test_a_function_compiled_around_the_model_sees_the_forged_functions():
    model, x = seeded(ResidualNet), images(4)
    function = torch.compile(lambda t: model(t), backend="eager")
    with torch.no_grad():
        function(x)
        recipe_of(forged_model(ratio=0.5)).apply_(model)
        torch.testing.assert_close(function(x), forged_model(ratio=0.5)(x))


PROBABILITIES = TTA((Transform(), Transform(True, 2, -1)), "probabilities")
HEAD = Head("layers.7", torch.linspace(-1, 1, 120).view(10, 12), torch.linspace(0, 1, 10))


@pytest.mark.parametrize("order", [1, -1])
def test_views_with_other_transforms_compiled_in_one_process_keep_their_own_logits(order):
    """PlainNet sees where a pixel is, so every transform changes its logits."""
    model, x = forged_model(PlainNet, ratio=0.5), images(2)
    set_tta_(model, "mirror")
    views = [plain(model), forged(model), with_tta(model, PROBABILITIES), with_tta(model, None), seeded(PlainNet)]
    compiled = {torch.compile(view, backend="aot_eager", fullgraph=True): view for view in views[::order]}
    with torch.no_grad():
        for function, view in [*compiled.items(), *compiled.items()]:  # and again, after all of them were compiled
            assert_tells_the_truth(function, view, x)
        logits = [view(x) for view in views[:4]]
    apart = [(one - other).abs().max().item() for i, one in enumerate(logits) for other in logits[:i]]
    assert min(apart) > 1e-3


@pytest.mark.parametrize("mean", ["logits", "probabilities"])
def test_compiled_transforms_keep_their_gradients(mean):
    model, x = seeded(PlainNet), images(2).requires_grad_()
    set_tta_(model, TTA(PROBABILITIES.transforms, mean))
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    expected, gradient = (torch.autograd.grad(each(x).square().sum(), x)[0] for each in (model, compiled))
    torch.testing.assert_close(gradient, expected)


@pytest.mark.parametrize("recursive_tags", [False, True])
def test_a_compiled_model_follows_every_change_of_its_parts(recursive_tags):
    if not hasattr(torch._dynamo.config, "use_recursive_dict_tags_for_guards"):
        pytest.skip("this torch has no recursive dict tags")
    model, x = forged_model(PlainNet, ratio=0.5), images(2)
    forge = next(iter(forges(model).values()))
    scale, shift = torch.linspace(0.5, 1.5, forge.channels), torch.ones(forge.channels)
    compiled = torch.compile(model, backend="eager")
    changes = [
        lambda: None,
        lambda: set_tta_(model, "mirror"),
        lambda: set_tta_(model, PROBABILITIES),
        lambda: set_head_(model, HEAD),
        lambda: forge.set_affine(scale, shift),
        lambda: forge.set_affine(2 * scale, shift),
        lambda: forge.set_affine(None, None),
        lambda: set_head_(model, None),
        lambda: set_tta_(model, "mirror"),
        lambda: set_tta_(model, None),
        lambda: remove_(model),
        lambda: set_tta_(model, "mirror"),
    ]
    with torch.no_grad(), torch._dynamo.config.patch(use_recursive_dict_tags_for_guards=recursive_tags):
        for change in changes:
            change()
            assert_tells_the_truth(compiled, model, x)


@pytest.mark.parametrize("compiled", [compile_in_place, lambda model: torch.compile(model, backend="eager")])
def test_transforms_take_effect_however_the_model_was_compiled(compiled):
    plain_logits, x = seeded(PlainNet)(images(2)), images(2)
    model = compiled(seeded(PlainNet))
    with torch.no_grad():
        model(x)
        set_tta_(model, "mirror")
        expected = (plain_logits + seeded(PlainNet)(x.flip(-1))) / 2
        assert_tells_the_truth(model, lambda x: expected, x)
        assert_tells_the_truth(forged(model), lambda x: expected, x)
        assert_tells_the_truth(plain(model), lambda x: plain_logits, x)
        remove_(model)
        assert_tells_the_truth(model, lambda x: plain_logits, x)
    assert (expected - plain_logits).abs().max() > 1e-3
