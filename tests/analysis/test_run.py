"""Every figure of an analysis against a direct computation on small models, and the bounds that must hold."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from lipforge.analysis import analyse
from lipforge.errors import InputError, SiteError
from lipforge.forge import (
    Head,
    MeanCentred,
    Piecewise,
    Step,
    find_sites,
    forge_,
    forged,
    forges,
    insert_,
    plain,
    set_head_,
    set_ratio_,
    set_tta_,
)
from tests.analysis.matrices import matrix_of
from tests.nets import ResidualNet, ReusingNet, Transformer, images, seeded

CLEAN = images(6, size=5)
MOVED = (CLEAN + 0.05 * torch.sign(images(6, seed=1, size=5) - 0.5)).clamp(0, 1)


def residual(mask=None, ratio=0.1):
    model = seeded(ResidualNet, width=3).double()
    forge_(model, CLEAN.double(), mask=mask or Step(), ratio=ratio)
    return model


def report_of(model, adversarial: Any = MOVED, spectral_images=2, **settings) -> Any:
    moved = None if adversarial is None else adversarial.double()
    return analyse(model, CLEAN.double(), moved, spectral_images=spectral_images, tolerance=1e-6, **settings)


def inputs(view, name, x, *, after_mask):
    """What arrives at a layer, by a hook of the test's own."""
    caught = []
    layer = view.get_submodule(name)
    target = layer.forge if hasattr(layer, "forge") else layer
    with torch.no_grad():
        handle = target.register_forward_hook(
            lambda _, args, out: caught.append(out if after_mask and target is not layer else args[0])
        )
        view(x)
    handle.remove()
    return caught[0]


@pytest.mark.parametrize("mask", [Step(), Piecewise(d=0.5)], ids=str)
def test_shares_are_those_of_a_direct_count(mask):
    model = residual(mask)
    report = report_of(model, spectral_images=0)
    assert 0 < max(site.suppressed_clean for site in report.layers) < 1
    for site in report.layers:
        forge = forges(model)[site.name]
        for x, zero, suppressed in (
            (CLEAN, site.zero_clean, site.suppressed_clean),
            (MOVED, site.zero_adversarial, site.suppressed_adversarial),
        ):
            arrived = inputs(forged(model), site.name, x.double(), after_mask=False)
            small = (arrived.abs() <= forge.threshold) & (arrived != 0)
            assert zero == pytest.approx((arrived == 0).double().mean().item(), abs=1e-12)
            assert suppressed == pytest.approx(small.double().mean().item(), abs=1e-12)


def test_an_image_that_no_attack_changed_is_no_adversarial_image():
    model, moved = residual(), MOVED.clone()
    moved[2:] = CLEAN[2:]
    first = analyse(model, CLEAN[:2].double(), MOVED[:2].double(), spectral_images=0)
    for site, expected in zip(report_of(model, moved, spectral_images=0).layers, first.layers, strict=True):
        assert site.suppressed_adversarial == pytest.approx(expected.suppressed_adversarial, abs=1e-12)
        assert site.zero_adversarial == pytest.approx(expected.zero_adversarial, abs=1e-12)


@pytest.mark.parametrize("mask", [Step(), Piecewise(d=0.5)], ids=str)
def test_singular_values_under_masks_are_those_of_explicit_matrices(mask):
    model = residual(mask, ratio=0.3)
    for site in report_of(model, spectral_images=3).layers:
        before, after, bare = (
            inputs(view, site.name, CLEAN[:3].double(), after_mask=late)
            for view, late in ((forged(model), False), (forged(model), True), (plain(model), False))
        )
        matrix = matrix_of(plain(model).get_submodule(site.name), tuple(before.shape[1:]))
        kept = torch.where(before != 0, after / torch.where(before != 0, before, 1.0), 0.0)
        sigma = torch.linalg.matrix_norm(matrix, ord=2)
        left = torch.linalg.matrix_norm(matrix * kept.flatten(1)[:, None, :], ord=2) / sigma
        active = torch.linalg.matrix_norm(matrix * (bare != 0).flatten(1)[:, None, :], ord=2) / sigma
        assert site.sigma == pytest.approx(sigma.item(), rel=1e-6)
        assert (site.ratio_forged.mean, site.ratio_forged.worst) == pytest.approx(
            (left.mean().item(), left.max().item()), rel=1e-5
        )
        assert (site.ratio_active.mean, site.ratio_active.worst) == pytest.approx(
            (active.mean().item(), active.max().item()), rel=1e-5
        )
        assert site.ratio_forged.worst <= 1
        assert site.sigma <= site.gershgorin
        assert site.ratio_forged.worst * site.sigma <= site.gershgorin_forged.worst <= site.gershgorin


def test_gains_are_those_of_the_layers_and_below_sigma_in_the_plain_model():
    model = residual(ratio=0.3)
    report = report_of(model)
    for site in report.layers:
        for view, gain in ((plain(model), site.gain_plain), (forged(model), site.gain_forged)):
            first, second = (inputs(view, site.name, x.double(), after_mask=False) for x in (CLEAN, MOVED))
            layer = view.get_submodule(site.name)
            with torch.no_grad():
                moved = (layer(second) - layer(first)).flatten(1).norm(dim=1)
            expected = moved / (second - first).flatten(1).norm(dim=1)
            assert (gain.mean, gain.worst) == pytest.approx((expected.mean().item(), expected.max().item()), rel=1e-9)
        assert site.gain_plain.worst <= site.sigma * (1 + 1e-6)


class OneSite(nn.Module):
    """A linear layer on the pixels as they are."""

    def __init__(self) -> None:
        super().__init__()
        self.flatten, self.body = nn.Flatten(), nn.Linear(12, 4, bias=False)

    def forward(self, x):
        return self.body(self.flatten(x))


def test_a_jump_makes_the_forged_gain_exceed_sigma():
    """Two inputs on both sides of the threshold: the mask amplifies their tiny distance without limit."""
    model = seeded(OneSite)
    insert_(model, find_sites(model, torch.zeros(1, 3, 2, 2), rules=["name:body"]), mask=Step(), ratio=0.5)
    forges(model)["body"].set_bound(torch.tensor(1.0))
    clean = torch.full((1, 3, 2, 2), 0.4999)
    analysis: Any = analyse(model, clean, clean + 0.0002)
    (site,) = analysis.layers
    assert site.jump == site.threshold == 0.5
    assert site.gain_plain.worst <= site.sigma < site.gain_forged.worst
    # Everything appears at once, 0.5001 where the input moved by 0.0002: 2500 times the plain gain.
    assert site.gain_forged.worst / site.gain_plain.worst == pytest.approx(0.5001 / 0.0002, rel=1e-2)


def test_the_network_is_measured_from_image_to_logits():
    model = residual(ratio=0.3)
    network = report_of(model, spectral_images=2).network
    for view, gain, slope in (
        (plain(model), network.gain_plain, network.jacobian_plain),
        (forged(model), network.gain_forged, network.jacobian_forged),
    ):
        with torch.no_grad():
            moved = (view(MOVED.double()) - view(CLEAN.double())).norm(dim=1)
        expected = moved / (MOVED.double() - CLEAN.double()).flatten(1).norm(dim=1)
        assert gain.worst == pytest.approx(expected.max().item(), rel=1e-9)
        slopes = [
            torch.linalg.matrix_norm(
                torch.autograd.functional.jacobian(view, x[None].double()).reshape(10, -1), ord=2
            ).item()
            for x in CLEAN[:2]
        ]
        assert (slope.mean, slope.worst) == pytest.approx((sum(slopes) / 2, max(slopes)), rel=1e-6)


def test_the_product_is_that_of_the_sites_and_per_image_under_masks():
    report = report_of(residual(ratio=0.3), spectral_images=1)
    logs = torch.tensor([[site.sigma, site.ratio_active.worst, site.ratio_forged.worst] for site in report.layers])
    whole, active, masked = logs.double().log10().sum(dim=0).tolist()
    assert report.product.sites == len(report.layers) == 4
    assert report.product.log10_plain == pytest.approx(whole, abs=1e-6)
    assert report.product.log10_active == pytest.approx(whole + active, abs=1e-6)
    assert report.product.log10_forged == pytest.approx(whole + masked, abs=1e-6)


@pytest.mark.parametrize("batch_size", [1, 4, 6])
def test_nothing_depends_on_the_batch_size(batch_size):
    """Up to the last digits: sums are taken in another order, and Lanczos stops for a batch as a whole."""
    model = residual()
    whole = report_of(model, spectral_images=5, batch_size=100)
    parts = report_of(model, spectral_images=5, batch_size=batch_size)
    for one, other in zip(whole.layers, parts.layers, strict=True):
        assert other.suppressed_clean == pytest.approx(one.suppressed_clean)
        assert other.ratio_forged.mean == pytest.approx(one.ratio_forged.mean, rel=1e-5)
        assert other.gain_forged.worst == pytest.approx(one.gain_forged.worst)
        assert other.gershgorin_forged.worst == pytest.approx(one.gershgorin_forged.worst)


def test_without_forging_the_masks_are_those_of_the_plain_model():
    model = residual()
    set_ratio_(model, 0.0)
    for site in report_of(model).layers:
        assert site.suppressed_clean == site.threshold == site.jump == 0
        assert site.ratio_forged == site.ratio_active
        assert site.gain_forged == site.gain_plain


def test_without_adversarial_images_what_needs_them_is_none():
    report = report_of(residual(), adversarial=None)
    assert report.network.gain_plain is report.network.gain_forged is None
    for site in report.layers:
        assert site.suppressed_adversarial is site.gain_plain is site.gain_forged is None
        assert site.suppressed_clean is not None


def test_without_spectral_images_the_costly_figures_are_none():
    report = report_of(residual(), spectral_images=0)
    assert report.product is report.network.jacobian_plain is None
    assert all(site.sigma is site.ratio_forged is site.gershgorin is None for site in report.layers)


def test_an_attack_may_be_handed_in_as_a_function_of_images_and_labels():
    model, labels = residual(), torch.arange(6)
    seen = []

    def attack(x, y):
        seen.append(y)
        return MOVED[y].double()

    made = analyse(model, (CLEAN.double(), labels), attack, spectral_images=2, batch_size=4, tolerance=1e-6)
    assert torch.equal(torch.cat(seen), labels)
    assert made == report_of(model, batch_size=4)
    with pytest.raises(InputError, match="data must carry labels"):
        analyse(model, CLEAN.double(), attack)


def test_the_tokens_of_a_transformer_are_blocks_of_one_map():
    model = seeded(Transformer).double()
    forge_(model, images(4).double(), ratio=0.2)
    analysis: Any = analyse(model, images(2).double(), tolerance=1e-8)
    site = analysis.layers[0]
    assert site.layer == "Linear"
    weight = plain(model).get_parameter(f"{site.name}.weight").detach()
    tokens = inputs(forged(model), site.name, images(2).double(), after_mask=True)
    each = torch.linalg.matrix_norm(weight * (tokens != 0).double()[..., None, :], ord=2)
    assert site.sigma == pytest.approx(torch.linalg.matrix_norm(weight, ord=2).item(), rel=1e-6)
    assert site.ratio_forged.mean * site.sigma == pytest.approx(each.amax(dim=1).mean().item(), rel=1e-6)


def test_what_a_centred_mask_replaces_counts_as_gone():
    model = residual(MeanCentred(), ratio=0.5)
    for site in report_of(model).layers:
        assert 0 < site.suppressed_clean < 1
        assert site.ratio_forged.worst <= 1


def test_a_layer_that_is_called_several_times_is_reported_at_its_first_call():
    model = seeded(ReusingNet).double()
    forge_(model, CLEAN.double(), ratio=0.1)
    (site,) = analyse(model, CLEAN.double()).layers
    with torch.no_grad():
        first = F.relu(nn.Module.get_submodule(model, "stem")(CLEAN.double()))
    small = (first <= site.threshold) & (first != 0)
    assert site.suppressed_clean == pytest.approx(small.double().mean().item(), abs=1e-12)


def test_a_loose_end_is_noted():
    report = analyse(residual(), CLEAN.double(), steps=1, tolerance=1e-9)
    assert any("have not converged at 4 sites" in text for text in report.notes)
    assert any("the mask jumps at 4 sites" in text for text in report.notes)
    assert report_of(residual(Piecewise())).notes == ()


def test_the_model_is_left_as_it_was():
    model = residual()
    before = {name: (forge.mode, forge.ratio) for name, forge in forges(model).items()}
    hooks = [len(module._forward_hooks) for module in model.modules()]
    report_of(model)
    assert {name: (forge.mode, forge.ratio) for name, forge in forges(model).items()} == before
    assert [len(module._forward_hooks) for module in model.modules()] == hooks


@pytest.mark.parametrize(
    ("adversarial", "match"),
    [(MOVED[:4], "adversarial"), (MOVED[:, :, :4], "adversarial images must be"), (MOVED * 3, r"must lie in \[0, 1\]")],
)
def test_wrong_adversarial_images_are_refused(adversarial, match):
    with pytest.raises(InputError, match=match):
        report_of(residual(), adversarial)


def test_more_adversarial_images_than_clean_ones_are_refused():
    with pytest.raises(InputError, match="one per image, got 12 for 6"):
        report_of(residual(), torch.cat([MOVED, MOVED]))


@pytest.mark.parametrize("settings", [{"spectral_images": -1}, {"steps": 0}])
def test_wrong_settings_are_refused(settings):
    with pytest.raises(InputError, match="spectral_images must not be negative"):
        report_of(residual(), **settings)


def test_an_unforged_model_is_refused():
    with pytest.raises(SiteError, match="no forged functions"):
        analyse(seeded(ResidualNet), CLEAN)


def test_names_are_kept():
    report = report_of(residual(), model_name="m", data_name="d", attack="a")
    assert (report.model, report.data, report.attack, report.mask) == ("m", "d", "a", "Step()")
    assert (report.images, report.spectral_images) == (6, 2)


@pytest.mark.parametrize("adversarial", [None, MOVED])
def test_tta_is_left_out(adversarial):
    model = residual()
    expected = report_of(model, adversarial)
    set_tta_(model, "mirror")
    assert report_of(model, adversarial) == expected


@pytest.mark.parametrize("part", ["tta", "head"])
def test_a_model_without_forged_functions_is_refused_whatever_else_it_has(part):
    model = seeded(ResidualNet)
    if part == "tta":
        set_tta_(model, "mirror")
    else:
        set_head_(model, Head("head", model.head.weight, model.head.bias))
    with pytest.raises(SiteError, match="no forged functions"):
        analyse(model, CLEAN)
