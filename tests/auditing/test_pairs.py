import pytest
import torch
from torch import nn

from lipforge.attacks.queries import Prepared
from lipforge.auditing.pairs import borrow, changed_pair, check_steady, classes_of, folded_pair, in_double, pair_of
from lipforge.auditing.plan import OWN, RESERVED, TRANSFERRED
from lipforge.batching import as_data
from lipforge.errors import InputError, ModelError, SiteError
from lipforge.forge import (
    TTA,
    Head,
    Transform,
    forge_,
    forged,
    forges,
    set_head_,
    set_mode_,
    set_tta_,
    straight_through,
    with_tta,
)
from tests.nets import ResidualNet, images, seeded


@pytest.fixture
def model():
    model = seeded(ResidualNet)
    forge_(model, images(32), ratio=2**-3)
    return model


def slope(classifier, x):
    x = x.clone().requires_grad_()
    return torch.autograd.grad(classifier(x).square().sum(), x)[0]


def test_a_borrowed_gradient_leaves_the_logits_as_they_are_bit_for_bit():
    judge, source, x = seeded(ResidualNet), seeded(ResidualNet, 1), images(4)
    borrowed = borrow(judge, source)
    assert torch.equal(borrowed(x.clone().requires_grad_()), judge(x))
    assert torch.equal(borrowed(x), judge(x))


def test_a_borrowed_gradient_is_the_sources_jacobian_under_the_judges_loss():
    """Witness: the vector-Jacobian product of the source with the loss's slope at the judge's logits."""
    judge, source, x = seeded(ResidualNet), seeded(ResidualNet, 1), images(4)
    point = x.clone().requires_grad_()
    (expected,) = torch.autograd.grad(source(point), point, 2 * judge(x).detach())
    torch.testing.assert_close(slope(borrow(judge, source), x), expected)


def test_a_forged_model_brings_two_backward_passes_with_its_own_logits(model):
    pair, x = changed_pair(model), images(4)
    logits = pair.candidate.classifier(x)
    assert list(pair.candidate.views) == ["BPDA identity", "BPDA smooth", TRANSFERRED]
    assert all(torch.equal(view(x), logits) for view in pair.candidate.views.values())
    slopes = [slope(view, x) for view in (pair.candidate.classifier, *pair.candidate.views.values())]
    assert len({tuple(each.flatten().tolist()) for each in slopes}) == 4


def test_the_base_gets_as_many_attacks_with_its_own_logits(model):
    pair, x = changed_pair(model), images(4)
    assert list(pair.base.views) == list(pair.candidate.views)
    assert all(torch.equal(view(x), pair.base.classifier(x)) for view in pair.base.views.values())


BPDA = ["BPDA identity", "BPDA smooth"]
DIAGONALS = ["identity alone", "shift +1 +1 alone", "shift -1 -1 alone"]
STAGES = {
    "mirror": [OWN, "mirror alone"],
    "diagonals": [OWN, *DIAGONALS[1:]],
    "head": [OWN],
    "affine": [OWN],
    "mirror head": [OWN, "identity alone", "mirror alone"],
    "mirror affine": [OWN, "identity alone", "mirror alone"],
    "mirror forge": [*BPDA, "identity alone", "mirror alone"],
    "diagonals forge affine head": [*BPDA, *DIAGONALS],
}


def changed(parts: str) -> nn.Module:
    model = seeded(ResidualNet)
    if "forge" in parts or "affine" in parts:
        forge_(model, images(16), ratio=2**-3 if "forge" in parts else 0.0)
    if "affine" in parts:
        for forge in forges(model).values():
            forge.set_affine(torch.linspace(0.5, 1.5, forge.channels), torch.linspace(-1, 1, forge.channels))
    if "head" in parts:
        set_head_(model, Head("head", -model.head.weight, model.head.bias))
    if parts.split()[0] in ("mirror", "diagonals"):
        set_tta_(model, parts.split()[0])
    return model


@pytest.mark.parametrize("parts", STAGES)
def test_a_changed_model_is_attacked_through_every_transform_alone(parts):
    pair, x = changed_pair(changed(parts)), images(3)
    candidate = pair.candidate.classifier
    assert list(pair.candidate.views) == [*STAGES[parts], TRANSFERRED]
    assert torch.equal(candidate(x), changed(parts)(x))
    for view in pair.candidate.views.values():
        assert torch.equal(view(x), candidate(x))
        assert torch.equal(view(x.clone().requires_grad_()), candidate(x))
    assert not {*pair.candidate.views} & (RESERVED - {OWN, TRANSFERRED})


@pytest.mark.parametrize("parts", STAGES)
def test_the_base_of_a_changed_model_gets_as_many_attacks_with_its_own_logits(parts):
    pair, x, base = changed_pair(changed(parts)), images(3), seeded(ResidualNet)
    assert list(pair.base.views) == list(pair.candidate.views)
    assert list(pair.base.sources) == list(pair.candidate.sources) == list(pair.base.views)
    assert torch.equal(pair.base.classifier(x), base(x))
    assert all(torch.equal(view(x.clone().requires_grad_()), base(x)) for view in pair.base.views.values())


@pytest.mark.parametrize("parts", [parts for parts in STAGES if parts.split()[0] in ("mirror", "diagonals")])
def test_the_gradient_through_a_transform_is_that_of_the_transform_alone(parts):
    """Witness: the vector-Jacobian product of the model without TTA, straight through its masks, on images that were
    transformed before."""
    model, x = changed(parts), images(2).double()
    candidate = forged(model).double()
    single = with_tta(straight_through(model) if "forge" in parts else model, None).double()
    views = changed_pair(model.double()).candidate.views
    for transform in (Transform(), Transform(True), Transform(False, 1, 1), Transform(False, -1, -1)):
        if f"{transform} alone" in views:
            point = x.clone().requires_grad_()
            upstream = 2 * candidate(x).detach()
            (expected,) = torch.autograd.grad(single(transform(point)), point, upstream)
            torch.testing.assert_close(slope(views[f"{transform} alone"], x), expected)


def test_masks_are_at_work_in_every_view_whatever_mode_the_model_is_in():
    model, x = changed("mirror forge"), images(2)
    expected = slope(changed_pair(model).candidate.views["mirror alone"], x)
    set_mode_(model, "plain")
    assert torch.equal(slope(changed_pair(model).candidate.views["mirror alone"], x), expected)


def test_every_transform_has_a_name_of_its_own():
    model = seeded(ResidualNet)
    transforms = tuple(Transform(flip, down, right) for flip in (False, True) for down in (-1, 0) for right in (0, 2))
    set_tta_(model, TTA(transforms))
    assert len(changed_pair(model).candidate.views) == len(transforms) - 1 + 2  # own and transferred gradients


def test_surrogates_of_a_pair_are_judged_by_the_candidate():
    base, candidate, other = (seeded(ResidualNet, seed) for seed in range(3))
    pair, x = pair_of(base, candidate, {"mine": other}), images(4)
    assert list(pair.candidate.views) == [OWN, "mine", TRANSFERRED]
    assert torch.equal(pair.candidate.views["mine"](x), candidate(x))
    assert not torch.equal(slope(pair.candidate.views["mine"], x), slope(candidate, x))


def test_a_pair_that_cannot_be_audited_is_refused():
    base = seeded(ResidualNet)
    with pytest.raises(InputError, match="candidate must be a classifier"):
        pair_of(base, 3)  # type: ignore[arg-type]  # the mistake under test
    with pytest.raises(ModelError, match="eval mode"):
        pair_of(base, seeded(ResidualNet).train())
    with pytest.raises(SiteError, match="no forged functions"):
        changed_pair(base)


@pytest.mark.parametrize(
    "name", ["robust", "misclassified", "clean", "non-adaptive", "transfer", "square", "float64", OWN, TRANSFERRED]
)
def test_a_surrogate_may_not_be_named_like_an_outcome(name):
    """An image that a surrogate named "robust" broke would count as robust."""
    base = seeded(ResidualNet)
    with pytest.raises(InputError, match=f"'{name}' is taken"):
        pair_of(base, base, {name: base})


def test_classes_are_the_models_and_not_those_that_occur_among_the_labels(model):
    data = as_data((images(2), torch.tensor([0, 1])))
    assert classes_of(model, data) == 10
    assert data.classes == 2


def test_a_copy_in_float64_computes_the_same_to_more_places(model):
    pair, x = changed_pair(model), images(4)
    double = in_double(pair.candidate.classifier, x[:1])
    assert isinstance(double, nn.Module)
    torch.testing.assert_close(double(x.double()).float(), pair.candidate.classifier(x), atol=1e-5, rtol=1e-4)
    assert pair.candidate.classifier(x).dtype == torch.float32
    assert in_double(lambda x: x, x[:1]) is None


def test_a_model_with_float32_in_its_code_has_no_copy_in_float64():
    class Float32(ResidualNet):
        def forward(self, x):
            return super().forward(x.float())

    assert in_double(seeded(Float32), images(1)) is None


def test_models_that_mix_the_images_of_a_batch_are_refused():
    mixing = nn.Sequential(nn.BatchNorm2d(3, track_running_stats=False), seeded(ResidualNet)).eval()
    with pytest.raises(ModelError, match="candidate gives an image other logits in another batch"):
        check_steady("candidate", mixing, images(8))


def test_random_models_are_refused_though_a_large_constant_hides_how_much_they_differ():
    class Offset(ResidualNet):
        def forward(self, x):
            return super().forward(x + 0.1 * torch.randn_like(x)) + 1e4

    with pytest.raises(ModelError, match="random outputs"):
        check_steady("base", seeded(Offset), images(8))


def test_a_mean_of_probabilities_is_also_attacked_through_the_mean_of_logits():
    model, x = seeded(ResidualNet), images(3)
    set_tta_(model, TTA(TTA.parse("mirror").transforms, "probabilities"))
    pair = changed_pair(model)
    assert list(pair.candidate.views) == ["own gradients", "mirror alone", "mean of logits", "transferred gradients"]
    point, other = x.clone().requires_grad_(), x.clone().requires_grad_()
    logits = pair.candidate.views["mean of logits"](point)
    assert torch.equal(logits, pair.candidate.classifier(x))
    set_tta_(model, "mirror")
    expected = torch.autograd.grad(model(other)[:, 0].sum(), other)[0]
    assert torch.allclose(torch.autograd.grad(logits[:, 0].sum(), point)[0], expected, atol=1e-6)


def test_the_base_is_attacked_through_the_same_transforms():
    model, x = seeded(ResidualNet), images(3)
    set_tta_(model, "mirror")
    pair, base = changed_pair(model), seeded(ResidualNet)
    point, other = x.clone().requires_grad_(), x.clone().requires_grad_()
    logits = pair.base.views["mirror alone"](point)
    assert torch.equal(logits, base(x))
    expected = torch.autograd.grad(base(other.flip(-1))[:, 0].sum(), other)[0]
    assert torch.allclose(torch.autograd.grad(logits[:, 0].sum(), point)[0], expected, atol=1e-6)


def folded_views(pair):
    """Every view of a pair, and the copy that attacks search on in its place."""
    views = [view for side in (pair.base, pair.candidate) for view in side.views.values()]
    assert all(isinstance(view, Prepared) for view in views)
    return [(view.original, view.folded) for view in views]


@pytest.mark.parametrize("parts", STAGES)
def test_folded_views_have_the_logits_and_gradients_of_the_views(parts):
    """In float64, where folding changes nothing but rounding; masks could turn that into a jump otherwise."""
    x = images(3).double()
    for original, folded in folded_views(folded_pair(changed_pair(changed(parts).double()), x)):
        assert folded is not original
        torch.testing.assert_close(folded(x), original(x))
        torch.testing.assert_close(slope(folded, x), slope(original, x))


def test_all_folded_views_of_a_changed_model_share_one_set_of_weights():
    seen: list[nn.Module] = []
    hook = nn.modules.module.register_module_forward_hook(lambda module, args, out: seen.append(module))
    views = folded_views(folded_pair(changed_pair(changed("mirror forge")), images(3)))
    seen.clear()  # of what making and checking the copies asked
    for _, folded in views:
        folded(images(1))
    hook.remove()
    assert len({module.weight.data_ptr() for module in seen if isinstance(module, nn.Linear)}) == 1


def test_folded_views_of_two_classifiers_are_judged_by_the_classifiers():
    base, candidate, other = (seeded(ResidualNet, seed).double() for seed in range(3))
    pair, x = folded_pair(pair_of(base, candidate, {"mine": other}), images(3).double()), images(3).double()
    for original, folded in folded_views(pair):
        torch.testing.assert_close(folded(x), original(x))
        torch.testing.assert_close(slope(folded, x), slope(original, x))


def test_a_pair_with_nothing_to_fold_stays_as_it_is():
    pair = pair_of(lambda x: x.flatten(1)[:, :10], lambda x: x.flatten(1)[:, 10:20])
    assert folded_pair(pair, images(3)) is pair
    linear = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 10)).eval()
    set_tta_(linear, "mirror")
    changed = changed_pair(linear)
    assert folded_pair(changed, images(3)) is changed


def test_a_changed_model_in_any_pair_is_attacked_past_its_masks_and_through_its_transforms():
    base, candidate, x = seeded(ResidualNet), changed("mirror forge"), images(3)
    pair = pair_of(base, candidate)
    assert list(pair.candidate.views) == [OWN, *STAGES["mirror forge"], TRANSFERRED]
    assert all(torch.equal(view(x), candidate(x)) for view in pair.candidate.views.values())
    expected = changed_pair(candidate).candidate.views
    for name in STAGES["mirror forge"]:
        torch.testing.assert_close(slope(pair.candidate.views[name], x), slope(expected[name], x))


def test_so_is_a_changed_base_and_both_sides_have_as_many_attacks():
    base, candidate = changed("mirror head").double(), seeded(ResidualNet, 1).double()
    x = images(3).double()
    pair = pair_of(base, candidate)
    assert list(pair.base.views) == list(pair.candidate.views) == [*STAGES["mirror head"], TRANSFERRED]
    assert all(torch.equal(view(x), base(x)) for view in pair.base.views.values())
    expected = changed_pair(base).candidate.views
    for name in STAGES["mirror head"]:
        torch.testing.assert_close(slope(pair.base.views[name], x), slope(expected[name], x))
    for original, folded in folded_views(folded_pair(pair, x)):
        torch.testing.assert_close(folded(x), original(x))
        torch.testing.assert_close(slope(folded, x), slope(original, x))
