import pytest
import torch
from torch import nn

from lipforge.auditing.pairs import borrow, classes_of, forged_pair, in_double, pair_of
from lipforge.auditing.plan import OWN, TRANSFERRED
from lipforge.batching import as_data
from lipforge.errors import InputError, ModelError, SiteError
from lipforge.forge import forge_
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
    pair, x = forged_pair(model), images(4)
    logits = pair.candidate.classifier(x)
    assert list(pair.candidate.views) == ["BPDA identity", "BPDA smooth", TRANSFERRED]
    assert all(torch.equal(view(x), logits) for view in pair.candidate.views.values())
    slopes = [slope(view, x) for view in (pair.candidate.classifier, *pair.candidate.views.values())]
    assert len({tuple(each.flatten().tolist()) for each in slopes}) == 4


def test_the_base_gets_as_many_attacks_with_its_own_logits(model):
    pair, x = forged_pair(model), images(4)
    assert list(pair.base.views) == list(pair.candidate.views)
    assert all(torch.equal(view(x), pair.base.classifier(x)) for view in pair.base.views.values())


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
        forged_pair(base)


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
    pair, x = forged_pair(model), images(4)
    double = in_double(pair.candidate.classifier)
    assert isinstance(double, nn.Module)
    torch.testing.assert_close(double(x.double()).float(), pair.candidate.classifier(x), atol=1e-5, rtol=1e-4)
    assert pair.candidate.classifier(x).dtype == torch.float32
    assert in_double(lambda x: x) is None
