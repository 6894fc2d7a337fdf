"""Models in 16 bit: what computes in it, what does not, and how results and runs tell them apart."""

from typing import ClassVar

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from lipforge.attacks import PGD
from lipforge.errors import InputError, ModelError, RunError
from lipforge.evaluation import evaluate, in_dtype
from lipforge.evaluation.dtypes import dtype_of
from lipforge.forge import TTA, Transform, forge_, forged, plain, set_tta_
from lipforge.runs import RunDir, change_of
from lipforge.runs.identity import model_identity
from lipforge.types import Threat
from tests.evaluation.toys import THREAT, labelled, linear
from tests.nets import ResidualNet, images, seeded

MODEL = linear().eval()
X, Y = labelled(MODEL)


class Picky(nn.Module):
    """Runs in all dtypes but one, as a device without its kernels does."""

    refused: ClassVar[torch.dtype] = torch.float16

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        if x.dtype == self.refused:
            raise RuntimeError("\"addmm_impl_cpu_\" not implemented for 'Half'\nand a trace")
        return self.head(x.mean(dim=(2, 3)))


class Quiet(ResidualNet):
    """Prints nothing of what is inside."""

    def __repr__(self) -> str:
        return "Quiet()"


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_the_model_computes_in_the_dtype_and_speaks_float32(dtype):
    kind = getattr(torch, dtype)
    made = in_dtype(MODEL, X, dtype)
    expected = linear().eval().to(kind)(X.to(kind))
    assert made(X).dtype == torch.float32
    assert torch.equal(made(X), expected.float())
    assert not torch.equal(made(X), MODEL(X))
    assert (dtype_of(made), dtype_of(MODEL)) == (dtype, "float32")


def test_attacks_get_the_gradient_of_the_16_bit_model():
    point = X[:1].clone().requires_grad_()
    (gradient,) = torch.autograd.grad(in_dtype(MODEL, X, "bfloat16")(point)[0, 0], point)
    weight = MODEL[1].weight[0].bfloat16().float().view_as(gradient)  # type: ignore[index]  # a Sequential
    torch.testing.assert_close(gradient, weight, rtol=0, atol=0)


def test_in_float32_it_is_the_model_itself():
    assert in_dtype(MODEL, X, "float32") is MODEL


def test_results_and_runs_tell_the_dtypes_apart(tmp_path):
    run, half = RunDir.open(tmp_path), in_dtype(MODEL, X, "bfloat16")
    first = evaluate(MODEL, (X, Y), PGD(steps=2), THREAT, run=run, label="base")
    with pytest.raises(RunError, match="models"):
        evaluate(half, (X, Y), PGD(steps=2), THREAT, run=run, label="base")
    second = evaluate(half, (X, Y), PGD(steps=2), THREAT, run=run, label="base bfloat16")
    assert (first.dtype, second.dtype) == ("float32", "bfloat16")
    assert run.read_result("base-bfloat16__pgd-steps=2__linf-8over255") == second


def test_a_function_has_no_dtype():
    result = evaluate(lambda x: MODEL(x), (X, Y), PGD(steps=2), THREAT)
    assert result.dtype == ""


def test_the_change_is_that_of_the_model_before_it_was_converted():
    model = seeded(ResidualNet).eval()
    forge_(model, images(8), ratio=0.1, show_progress=False)
    views = forged(model), plain(model)
    made = [in_dtype(view, images(1), "bfloat16") for view in views]
    assert change_of(made[0]) == change_of(views[0])
    assert change_of(made[0]) is not None
    assert change_of(made[1]) is None
    assert made[0](images(2)).isfinite().all()


def test_models_that_average_over_other_transforms_are_told_apart():
    found = []
    for transform in (Transform(mirror=True), Transform(down=1)):
        model = seeded(Quiet).eval()
        set_tta_(model, TTA((Transform(), transform)))
        found.append(model_identity(in_dtype(model, images(1), "bfloat16")))
    assert found[0] != found[1]


def test_a_dtype_that_the_device_cannot_run_is_an_error_with_a_way_out():
    expected = r"does not run in float16 on cpu: .* not implemented for 'Half'; use bfloat16, float32 or another device"
    with pytest.raises(ModelError, match=expected) as caught:
        in_dtype(Picky().eval(), X, "float16")
    assert "trace" not in str(caught.value)
    assert in_dtype(Picky().eval(), X, "bfloat16")(X).shape == (len(X), 2)


def test_an_overflow_is_an_error():
    large = linear().eval()
    nn.init.constant_(large[1].weight, 6e4)  # type: ignore[index]  # a Sequential
    with pytest.raises(ModelError, match="in float16 the model returned NaN or infinite logits; use bfloat16"):
        in_dtype(large, X, "float16")


def test_an_unknown_dtype_gets_the_names_of_all():
    with pytest.raises(InputError, match=r"dtype must be one of float32, bfloat16, float16, got 'int8'"):
        in_dtype(MODEL, X, "int8")


def test_a_threat_is_kept_although_the_model_rounds_images(tmp_path):
    """Images are checked in float32, before they are rounded for the model."""
    run = RunDir.open(tmp_path)
    half = in_dtype(MODEL, X, "bfloat16")
    evaluate(half, (X, Y), PGD(steps=3), Threat("linf", "1/255"), run=run, label="b", save_images=True)
    (path,) = tmp_path.glob("shards/*/*.safetensors")
    assert (load_file(path)["images"] - X).abs().max() <= 1 / 255 + 1e-6
