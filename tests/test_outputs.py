from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

import lipforge as lf
from lipforge.auditing.plan import Plan
from lipforge.auditing.surrogates import ZeroGradient, distilled, with_gradient
from lipforge.errors import ModelError
from lipforge.evaluation import estimate, sweep, transfer
from lipforge.improvement import fit_head
from lipforge.models.packages import import_package
from lipforge.outputs import logits_in
from tests.nets import ResidualNet, images, seeded

LOGITS, FEATURES = torch.zeros(2, 10), torch.zeros(2, 64)


@pytest.mark.parametrize(
    "output",
    [
        LOGITS,
        SimpleNamespace(logits=LOGITS, hidden_states=None),
        {"features": FEATURES, "logits": LOGITS},
        {"scores": LOGITS, "attentions": None},
        (LOGITS, FEATURES),
        [LOGITS],
    ],
    ids=["tensor", "object", "dict with logits", "dict with one tensor", "tuple", "list"],
)
def test_logits_are_found_in(output):
    assert logits_in(output) is LOGITS


@pytest.mark.parametrize(
    ("output", "found"),
    [
        (torch.zeros(2, 10, 1), r"got \(2, 10, 1\)"),
        ({"a": LOGITS, "b": FEATURES}, r"got dict \(a: \(2, 10\), b: \(2, 64\)\)"),
        ({"logits": None, "b": LOGITS}, r"got dict \(logits: NoneType, b: \(2, 10\)\)"),
        ((torch.zeros(()), LOGITS), r"got tuple \(0: \(\), 1: \(2, 10\)\)"),
        (SimpleNamespace(logits=[1.0]), r"got SimpleNamespace \(logits: list\)"),
        (None, "got NoneType"),
        ((), "got tuple"),
    ],
    ids=["images", "two tensors", "no logits", "loss first", "a list of numbers", "nothing", "an empty tuple"],
)
def test_what_holds_no_logits_is_named(output, found):
    with pytest.raises(ModelError, match=rf"must return logits \(N, K\).*{found}"):
        logits_in(output)


@pytest.mark.zoo
def test_logits_are_found_in_what_inception_returns_in_train_mode():
    outputs = import_package("torchvision").models.inception.InceptionOutputs(LOGITS, FEATURES)
    assert logits_in(outputs) is LOGITS


def test_a_model_of_transformers_is_forged_attacked_and_averaged():
    config = transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, image_size=8, patch_size=4
    )
    model = seeded(lambda: transformers.ViTForImageClassification(config)).eval()
    x = images(8, size=8)
    lf.forge_(model, x, ratio=2**-4, show_progress=False)
    assert len(lf.forges(model)) == 4  # both layers of each MLP
    forged, logits = lf.forged(model), lf.forged(model)(x).logits
    result = lf.evaluate(forged, (x, logits.argmax(dim=1)), "pgd:steps=5", THREAT, show_progress=False)
    assert result.clean_accuracy == 1
    lf.set_tta_(model, "mirror")
    torch.testing.assert_close(model(x), (logits + forged(x.flip(-1)).logits) / 2)


class Answering(nn.Module):
    """A net whose logits come in some form."""

    def __init__(self, net: nn.Module, form: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.net, self.form = net, form

    def forward(self, x: Tensor) -> Any:
        return self.form(self.net(x))


THREAT, SHORT = lf.Threat("linf", "2/255"), lf.PGD(steps=2)
PLAN = Plan(SHORT, SHORT, SHORT, full=SHORT, refine=1, check_images=2, check_queries=2)


def net() -> nn.Module:
    return seeded(lambda: ResidualNet(width=4)).eval()


def everything(model: nn.Module) -> dict[str, Any]:
    """What each part of lipforge finds of a model, without seconds and identities."""
    x = images(100, size=8)
    quiet: Any = {"show_progress": False}
    data = (x[:8], net()(x[:8]).argmax(dim=1))
    base = lf.plain(model)
    lf.forge_(model, x, ratio=2**-8, **quiet)
    forged = lf.forged(model)
    compared = lf.audit(base, forged, data, THREAT, plan=PLAN, **quiet)
    searched = lf.choose_ratio(model, data, threat=THREAT, ratios=[2**-8], attack=SHORT, **quiet)
    fitted = fit_head(base, (x, torch.arange(100) % 10), THREAT, rounds=1, steps=2, **quiet)
    found = {
        "forge": [float(forge.bound) for forge in lf.forges(model).values()],
        "clean": lf.clean_accuracy(forged, data, **quiet),
        "evaluate": lf.evaluate(forged, data, lf.fast(), THREAT, **quiet).outcome,
        "audit": (compared.verdict, compared.base_outcome, compared.candidate_outcome, len(compared.checks)),
        "search": [score.robust for score in searched.scores],
        "certify": [image.prediction for image in lf.certify(forged, data, n=20, n0=5, **quiet).images],
        "analyse": lf.analyse(model, data, spectral_images=1, **quiet).network,
        "transfer": transfer(base, forged, data, SHORT, THREAT, **quiet).outcome,
        "sweep": [row.outcome for row in sweep({"forged": forged}, data, [lf.FGSM()], [THREAT], **quiet).rows],
        "head": fitted.after,
        "estimate": estimate(forged, data, lf.FGSM(), THREAT, probe=2, **quiet).forwards,
    }
    lf.set_tta_(base, "mirror")
    with torch.no_grad():
        return found | {"tta": base(x).tolist()}


def test_a_model_that_returns_an_object_gives_the_results_of_one_that_returns_its_logits():
    expected = everything(Answering(net(), lambda logits: logits).eval())
    found = everything(Answering(net(), lambda logits: SimpleNamespace(logits=logits, loss=None)).eval())
    assert found == expected


def test_surrogates_take_an_object_with_logits():
    x, model = images(4, size=8), Answering(net(), lambda logits: SimpleNamespace(logits=logits)).eval()
    assert torch.equal(ZeroGradient(model)(x), net()(x))
    assert with_gradient(model, x[:1]) is model
    copied = distilled(model, model, lambda positions: x[positions], len(x), threat=THREAT, seed=0)
    assert isinstance(copied, nn.Module)
