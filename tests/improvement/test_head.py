import copy
from collections.abc import Callable
from functools import partial
from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.optimize import minimize
from torch import Tensor, nn

import lipforge.improvement.head as module
from lipforge.attacks import norms
from lipforge.errors import InputError, ModelError
from lipforge.forge import find_sites, insert_
from lipforge.improvement import HeadFit, fit_head, last_linear
from lipforge.improvement.head import Features, Head, Numbered, Objective, ascend, fit_linear
from lipforge.models import load_model
from lipforge.types import Threat
from tests.nets import PlainNet, ResidualNet, Transformer, images, seeded

THREAT = Threat("linf", "1/255")


def labelled(count: int = 120, size: int = 32) -> tuple[Tensor, Tensor]:
    """Noisy images, each in the colour of its class, of which there are five: a model has yet to learn them."""
    y = torch.arange(count) % 5
    colours = torch.rand(5, 3, 1, 1, generator=torch.Generator().manual_seed(5))
    return 0.3 * images(count, size=size) + 0.7 * colours[y], y


def contrary(model: nn.Module) -> tuple[Tensor, Tensor]:
    """Images whose labels the model gets right where they are held out, and wrong where a fit learns from them."""
    x, _ = labelled()
    with torch.no_grad():
        y = (model(x).argmax(dim=1) + 1) % 10
    judged = module.split_held_out(len(x), 0.2, 50, seed=0)[1]
    y[judged] = (y[judged] - 1) % 10
    return x, y


def everything(model: nn.Module) -> dict[str, Any]:
    """Weights, gradients, flags and hooks: all that a fit could leave behind."""
    return {
        **{name: tensor.clone() for name, tensor in model.state_dict().items()},
        **{f"{name} free": part.requires_grad for name, part in model.named_parameters()},
        **{f"{name} grad": part.grad for name, part in model.named_parameters()},
        **{f"{name} hooks": len(part._forward_pre_hooks) for name, part in model.named_modules()},
        **{f"{name} watched": len(part._forward_hooks) for name, part in model.named_modules()},
        **{f"{name} training": part.training for name, part in model.named_modules()},
    }


def assert_same(before: dict[str, Any], after: dict[str, Any]) -> None:
    assert before.keys() == after.keys()
    for name, value in before.items():
        assert torch.equal(value, after[name]) if isinstance(value, Tensor) else value == after[name], name


def features(count: int, seed: int) -> Features:
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(count, 6, generator=generator, dtype=torch.float64)
    return Features(inputs, torch.randint(0, 4, (count,), generator=generator))


def own_head(*, bias: bool = True) -> Head:
    generator = torch.Generator().manual_seed(9)
    weight = torch.randn(4, 6, generator=generator, dtype=torch.float64)
    return Head(weight, torch.randn(4, generator=generator, dtype=torch.float64) if bias else None)


def by_hand(flat: Any, own: Head, adversarial: Features, clean: Features | None, options: dict[str, float]) -> float:
    """The objective in numpy, pair by pair, for scipy to minimise."""
    weight, bias = flat[:24].reshape(4, 6), flat[24:]

    def loss(part: Features) -> float:
        logits = part.inputs.numpy() @ weight.T + (bias if len(bias) else 0)
        likelihood = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        return float(-np.log(likelihood[np.arange(len(logits)), part.labels.numpy()]).mean())

    start = torch.cat([part.flatten() for part in own.parts]).numpy()
    value = loss(adversarial)
    if clean is not None:
        value = (1 - options["clean"]) * value + options["clean"] * loss(clean)
    pairs = [((weight[i] - weight[j]) ** 2).sum() for i, j in combinations(range(4), 2)]
    return float(value + options["pull"] * ((flat - start) ** 2).sum() + options["penalty"] * np.mean(pairs))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("clean", "penalty"), [(0.0, 0.0), (0.3, 0.0), (0.0, 0.2)])
def test_the_fit_is_scipys_minimum(bias, clean, penalty):
    own, adversarial, options = own_head(bias=bias), features(80, 0), {"pull": 0.05, "clean": clean, "penalty": penalty}
    calm = features(50, 1) if clean else None
    head = fit_linear(Objective(**options), own, adversarial, calm)
    start = torch.cat([part.flatten() for part in own.parts]).numpy()
    found = minimize(
        by_hand, start, (own, adversarial, calm, options), method="L-BFGS-B", options={"ftol": 1e-15, "gtol": 1e-9}
    )
    flat = torch.cat([part.flatten() for part in head.parts]).numpy()
    # scipy takes differences for its gradient, which are exact to about 1e-8, and the curvature is at least 0.1.
    np.testing.assert_allclose(flat, found.x, atol=1e-5)
    assert (head.bias is None) is not bias


def test_the_gradient_vanishes_at_the_fit():
    own, adversarial, objective = own_head(), features(80, 0), Objective(pull=0.01, clean=0.0, penalty=0.1)
    fitted = fit_linear(objective, own, adversarial)
    head = fitted.map(Tensor.requires_grad_)
    slopes = torch.autograd.grad(objective(head, own, adversarial, None), head.parts)
    assert max(float(slope.abs().max()) for slope in slopes) < 1e-6


def test_a_strong_pull_keeps_the_head_and_a_penalty_brings_rows_together():
    own, adversarial = own_head(), features(80, 0)
    pulled = fit_linear(Objective(1e6, 0.0, 0.0), own, adversarial)
    torch.testing.assert_close(pulled.weight, own.weight, atol=1e-5, rtol=0)
    alike = fit_linear(Objective(0.0, 0.0, 1e6), own, adversarial)
    torch.testing.assert_close(alike.weight, alike.weight.mean(dim=0).expand(4, 6), atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("build", "name"),
    [(ResidualNet, "head"), (PlainNet, "layers.7"), (Transformer, "head")],
    ids=lambda part: str(part),
)
def test_the_last_linear_layer_is_found(build, name):
    assert last_linear(seeded(build), images(4)) == name


@pytest.mark.parametrize("name", ["cifar10-resnet", "cifar10-vit"])
def test_the_bundled_models_have_a_head(name):
    model = load_model(name)
    head = model.get_submodule(last_linear(model, images(4)))
    assert isinstance(head, nn.Linear)
    assert head.out_features == 10


class Twice(nn.Module):
    """A linear layer that is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.flat, self.head = nn.Linear(3 * 8 * 8, 5), nn.Linear(5, 5)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.head(self.flat(x.flatten(1))))
        return logits


def ended(*end: nn.Module) -> nn.Module:
    return seeded(lambda: nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 5), *end))


@pytest.mark.parametrize(
    ("model", "found"),
    [
        (nn.Sequential(nn.Conv2d(3, 5, 8), nn.Flatten()).eval(), "the last layer, '0', is a Conv2d"),
        (ended(nn.ReLU()), "something changes the output of the last layer, '1'"),
        (ended(nn.ReLU(inplace=True)), "something changes the output of the last layer, '1'"),
        (ended(nn.Softmax(dim=1)), "something changes the output of the last layer, '1'"),
        (seeded(Twice), "the last layer, 'head', is called 2 times"),
        (nn.Sequential(nn.AvgPool2d(8), nn.Flatten()).eval(), "no conv or linear layer was called"),
    ],
    ids=["conv", "relu", "in-place relu", "softmax", "twice", "no layer"],
)
def test_a_model_without_a_last_linear_layer_is_told_why(model, found):
    with pytest.raises(ModelError, match=f"no last linear layer to refit: {found}.*leave the head out"):
        last_linear(model, images(8, size=8))


def test_a_forged_head_is_refused():
    model = ended()
    insert_(model, find_sites(model, images(1, size=8), rules=["name:*"]))
    with pytest.raises(ModelError, match=r"does more than multiply by its weight.*is it forged\?"):
        last_linear(model, images(4, size=8))


@pytest.fixture(scope="module")
def fitted() -> tuple[nn.Module, dict[str, Any], HeadFit]:
    """A net with batch norms, what it was before, and a fit that helps it."""
    model = seeded(ResidualNet)
    before = everything(model)
    return model, before, fit_head(model, labelled(size=12), THREAT, steps=2, pull=1e-3, show_progress=False)


def test_a_fit_leaves_the_model_as_it_was(fitted):
    model, before, _ = fitted
    assert_same(before, everything(model))


@pytest.mark.parametrize("build", [ResidualNet, PlainNet], ids=["folded", "not folded"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_a_fit_that_breaks_off_leaves_the_model_as_it_was(build, error, monkeypatch):
    def fail(*args: object, **options: object) -> None:
        raise error

    model = seeded(build)
    data, before = labelled(), everything(model)
    monkeypatch.setattr(module, "fit_linear", fail)
    with pytest.raises(error):
        fit_head(model, data, THREAT, steps=1, show_progress=False)
    assert_same(before, everything(model))


def test_a_fit_that_helps_is_kept_and_says_what_it_gains(fitted):
    model, _, fit = fitted
    assert fit.layer == "head"
    assert fit.kept_rounds > 0
    assert (fit.before.count, fit.images) == (24, 96)
    assert fit.after.robust > fit.before.robust
    better = copy.deepcopy(model)
    better.head.weight.data, better.head.bias.data = fit.weight, fit.bias
    x, y = labelled(size=12)
    judged = module.split_held_out(120, 0.2, 50, seed=0)[1]
    with torch.no_grad():
        right = (better(x[judged]).argmax(dim=1) == y[judged]).float().mean()
    assert fit.after.clean == pytest.approx(float(right))
    assert fit.after.clean >= fit.after.robust


def test_the_same_seed_gives_the_same_tensors(fitted):
    model, _, fit = fitted
    again = fit_head(model, labelled(size=12), THREAT, steps=2, pull=1e-3, show_progress=False)
    other = fit_head(model, labelled(size=12), THREAT, steps=2, pull=1e-3, seed=1, show_progress=False)
    assert torch.equal(fit.weight, again.weight)
    assert fit.bias.tolist() == again.bias.tolist()
    assert not torch.equal(fit.weight, other.weight)


def test_clean_images_and_the_penalty_change_the_fit(fitted):
    model, _, fit = fitted
    refit = partial(fit_head, model, labelled(size=12), THREAT, steps=2, pull=1e-3, show_progress=False)
    assert not torch.equal(fit.weight, refit(clean=0.5).weight)
    assert not torch.equal(fit.weight, refit(penalty=0.1).weight)


def test_a_fit_that_harms_held_out_images_gives_the_own_head_back():
    model = seeded(PlainNet)
    fit = fit_head(model, contrary(model), THREAT, steps=1, show_progress=False)
    assert fit.kept_rounds == 0
    assert fit.after == fit.before
    own = model.state_dict()
    assert torch.equal(fit.weight, own[f"{fit.layer}.weight"])
    assert fit.bias is not None
    assert torch.equal(fit.bias, own[f"{fit.layer}.bias"])
    assert fit.weight.data_ptr() != own[f"{fit.layer}.weight"].data_ptr()


def test_a_head_without_a_bias_stays_without():
    model = seeded(lambda: nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 5, bias=False)))
    fit = fit_head(model, labelled(size=8), THREAT, show_progress=False)
    assert fit.bias is None
    assert fit.kept_rounds > 0


@pytest.mark.parametrize("wrong", [0, 1], ids=["classified correctly", "misclassified"])
def test_the_attack_of_a_fit_reaches_the_optimum_of_a_linear_model(wrong):
    """Two classes, images away from 0 and 1: the largest loss is that of the margin minus eps ||w_0 - w_1||_1."""
    model = seeded(lambda: nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 2))).double()
    x = images(6, size=8).double() * 0.5 + 0.25
    logits = model(x).detach()
    y = (logits.argmax(dim=1) + wrong) % 2
    x_adv = ascend(model, Numbered(x, y, torch.arange(6)), threat=THREAT, steps=3, seed=0)
    assert (x_adv - x).abs().max() <= THREAT.eps + 1e-12
    weight = model.state_dict()["1.weight"]
    gap = (weight[0] - weight[1]).abs().sum()
    margins = (logits.gather(1, y[:, None]) - logits.gather(1, 1 - y[:, None])).squeeze(1)
    expected = F.softplus(THREAT.eps * gap - margins)
    torch.testing.assert_close(F.cross_entropy(model(x_adv), y, reduction="none").detach(), expected)


def test_the_attack_returns_the_worst_point_and_not_the_last():
    """The loss has its peak at the image; full steps of 2.5 eps throw every point to the edge of the ball."""

    def peak(x: Tensor) -> Tensor:
        height = -(x - 0.5).abs().flatten(1).sum(dim=1, keepdim=True)
        return torch.cat([-height, height], dim=1)

    batch = Numbered(torch.full((4, 3, 8, 8), 0.5), torch.zeros(4, dtype=torch.int64), torch.arange(4))
    start = norms.of(THREAT).random_start(batch.x, THREAT.eps, seed=0, sample_ids=batch.ids, stream="fit-start")
    assert torch.equal(ascend(peak, batch, threat=THREAT, steps=1, seed=0), start)


def broken(model: nn.Module) -> nn.Module:
    model.state_dict()["layers.7.weight"][0, 0] = torch.nan
    return model


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        (None, {"pull": -1.0}, "pull must be at least 0, got -1"),
        (None, {"penalty": -0.5}, "penalty must be at least 0, got -0.5"),
        (None, {"clean": 1.5}, "clean must be between 0 and 1, got 1.5"),
        (None, {"rounds": 0}, "rounds must be at least 1, got 0"),
        (None, {"held_out": 1.0}, "held_out must lie between 0 and 1, got 1"),
        (None, {"held_out": 0.1}, r"data must hold at least 200 images .*held_out=0.1\), got 120"),
        (nn.Module.train, {}, "must be in eval mode"),
        (broken, {}, "NaN or infinite logits"),
    ],
)
def test_bad_input_is_named(change: Callable[[nn.Module], nn.Module] | None, options, message):
    model = seeded(PlainNet)
    data = labelled()
    with pytest.raises((InputError, ModelError), match=message):
        fit_head(change(model) if change else model, data, THREAT, show_progress=False, **options)


def test_labels_must_be_classes_of_the_model():
    with pytest.raises(InputError, match=r"labels must lie in \[0, 10\)"):
        fit_head(seeded(PlainNet), (images(120), torch.full((120,), 10)), THREAT, show_progress=False)


def test_a_model_without_a_gradient_is_refused():
    class Cut(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            logits: Tensor = super().forward(x.detach())
            return logits

    model = seeded(lambda: Cut(nn.Flatten(), nn.Linear(3 * 8 * 8, 5))).requires_grad_(False)
    with pytest.raises(ModelError, match="no gradient with respect to the images"):
        fit_head(model, (images(120, size=8), torch.zeros(120, dtype=torch.int64)), THREAT, show_progress=False)
