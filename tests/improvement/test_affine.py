import copy
import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lipforge.improvement.affine as module
from lipforge.errors import InputError, ModelError, SiteError
from lipforge.forge import find_sites
from lipforge.improvement import AffineFit, fit_affine
from lipforge.improvement.affine import usable
from lipforge.improvement.head import HeldOut, judge, read_batches, split_held_out
from tests.improvement.test_head import THREAT, assert_same, everything, labelled
from tests.nets import PlainNet, ResidualNet, TorchAttentionNet, Transformer, images, seeded


def quick(model: nn.Module, data: Any = None, **options: Any) -> AffineFit:
    settings = {"steps": 6, "batch_size": 16, "inner_steps": 1, "learning_rate": 0.1, "show_progress": False}
    return fit_affine(model, find_sites(model), data or labelled(), THREAT, **{**settings, **options})


def second(model: nn.Module, size: int = 32) -> tuple[Tensor, Tensor]:
    """Images with the class that the model finds second most likely: it is wrong on all of them, but not by far."""
    x = images(120, size=size)
    with torch.no_grad():
        return x, model(x).topk(2, dim=1).indices[:, 1]


def with_channels(model: nn.Module, fit: AffineFit) -> nn.Module:
    """A copy of the model with the fitted scales and shifts, written down by hand."""
    model, dims = copy.deepcopy(model), {site.name: site.channel_dim for site in find_sites(model)}

    def changed(name: str, args: tuple[Tensor, ...]) -> Tensor:
        scale, shift = fit.channels[name]
        return (args[0].movedim(dims[name], -1) * scale + shift).movedim(-1, dims[name])

    for name in fit.channels:
        model.get_submodule(name).register_forward_pre_hook(lambda layer, args, name=name: changed(name, args))
    return model


@pytest.mark.parametrize(
    ("build", "size"), [(ResidualNet, 12), (PlainNet, 32), (Transformer, 32)], ids=["folded", "in-place", "transformer"]
)
def test_a_fit_says_what_the_changed_model_does_and_leaves_the_model_as_it_was(build, size):
    model = seeded(build)
    data, state = second(model, size), everything(model)
    fit = quick(model, data)
    assert_same(state, everything(model))
    assert fit.kept_steps > 0
    assert fit.after.robust > fit.before.robust
    assert {name: scale.shape for name, (scale, _) in fit.channels.items()} == {
        site.name: (site.in_features,) for site in find_sites(model)
    }
    judged = split_held_out(120, 0.2, 50, seed=0)[1]
    batches = read_batches(module.as_data(data), 10, judged, batch_size=16, device=torch.device("cpu"))
    found = judge(with_channels(model, fit), batches, threat=THREAT, seed=0)
    assert found == fit.after


def test_the_same_seed_gives_the_same_tensors():
    model = seeded(PlainNet)
    data = second(model)
    first, again, other = quick(model, data), quick(model, data), quick(model, data, seed=1)
    assert first.kept_steps > 0
    for name, (scale, shift) in first.channels.items():
        assert torch.equal(scale, again.channels[name][0])
        assert torch.equal(shift, again.channels[name][1])
        assert not torch.equal(scale, other.channels[name][0])


def robust_shares(monkeypatch: pytest.MonkeyPatch, *values: float) -> None:
    """Let these shares of the held-out images be robust: before the fit, and each of the three times it is judged."""
    later = iter(values)
    monkeypatch.setattr(module, "judge", lambda *args, **options: HeldOut(20, 1.0, next(later)))


def test_a_fit_that_harms_held_out_images_changes_nothing(monkeypatch):
    robust_shares(monkeypatch, 0.5, 0.4, 0.5, 0.3)
    fit = quick(seeded(PlainNet))
    assert fit.kept_steps == 0
    assert fit.after == fit.before
    for scale, shift in fit.channels.values():
        assert torch.equal(scale, torch.ones_like(scale))
        assert torch.equal(shift, torch.zeros_like(shift))


def test_the_best_state_on_held_out_images_is_kept(monkeypatch):
    robust_shares(monkeypatch, 0.5, 0.6, 0.7, 0.6)
    fit = quick(seeded(PlainNet))
    assert (fit.kept_steps, fit.after.robust) == (4, 0.7)


@pytest.mark.parametrize("build", [ResidualNet, PlainNet], ids=["folded", "not folded"])
def test_an_interrupted_fit_leaves_the_model_as_it_was(build, monkeypatch):
    def fail(*args: object, **options: object) -> None:
        raise KeyboardInterrupt

    model = seeded(build)
    state = everything(model)
    monkeypatch.setattr(module, "ascend", fail)
    with pytest.raises(KeyboardInterrupt):
        quick(model)
    assert_same(state, everything(model))


def test_attention_modules_and_in_place_activations_are_left_out():
    attention = seeded(TorchAttentionNet)
    sites = find_sites(attention, rules=["attention_projections", "mlp_linears"])
    assert "MultiheadAttention" in {site.layer for site in sites}
    assert {site.layer for site in usable(attention, sites)} == {"Linear"}
    plain = seeded(PlainNet)
    with pytest.raises(SiteError, match="neither an attention module nor an in-place activation"):
        usable(plain, find_sites(plain, rules=["activations"]))


def test_sites_of_another_model_are_refused():
    model = seeded(PlainNet)
    stray = dataclasses.replace(find_sites(model)[0], name="elsewhere")
    with pytest.raises(SiteError, match="no module 'elsewhere'; was the site found in another model"):
        fit_affine(model, [stray], labelled(), THREAT, show_progress=False)


def test_a_non_finite_activation_names_its_site():
    model = seeded(PlainNet)
    sites = find_sites(model)
    model.state_dict()["layers.0.bias"][0] = torch.inf
    with pytest.raises(ModelError, match=r"site 'layers\.2' saw a non-finite activation"):
        fit_affine(model, sites, labelled(), THREAT, show_progress=False)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": 0}, "steps must be at least 1, got 0"),
        ({"inner_steps": 0}, "inner_steps must be at least 1, got 0"),
        ({"learning_rate": 0.0}, "learning_rate must be above 0, got 0"),
        ({"held_out": 0.0}, "held_out must lie between 0 and 1, got 0"),
        ({"held_out": 0.1}, "data must hold at least 200 images"),
    ],
)
def test_bad_input_is_named(options, message):
    with pytest.raises(InputError, match=message):
        quick(seeded(PlainNet), **options)


def test_labels_must_be_classes_of_the_model_and_the_model_in_eval_mode():
    with pytest.raises(InputError, match=r"labels must lie in \[0, 10\)"):
        quick(seeded(PlainNet), (images(120), torch.full((120,), 10)))
    model = seeded(PlainNet)
    sites = find_sites(model)
    with pytest.raises(ModelError, match="must be in eval mode"):
        fit_affine(model.train(), sites, labelled(), THREAT, show_progress=False)
