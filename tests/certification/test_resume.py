"""Certification in a run directory: it resumes where it stopped, and never mixes two classifiers."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from lipforge.certification import certify
from lipforge.errors import InputError, RunError
from lipforge.forge import forge_, forged, plain
from lipforge.runs import RunDir
from tests.nets import ResidualNet, images, seeded

DATA = (images(5, size=2), torch.tensor([0, 1, 2, 3, 4]))
SETTINGS: dict[str, Any] = {"n0": 100, "n": 9_900, "alpha": 0.01, "batch_size": 5000}  # two images to a shard


class Tiny(nn.Module):
    """A linear classifier that can be interrupted."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.weight = nn.Parameter(torch.randn(12, 10, generator=generator))
        self.left: list[int] = []  # no plain value, which would be a setting of the model

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.left:
            self.left[0] -= 1
            if self.left[0] < 0:
                raise KeyboardInterrupt
        return x.flatten(1) @ self.weight


def test_an_interrupted_certification_resumes_and_ends_as_if_it_had_not_been(tmp_path):
    whole = certify(Tiny().eval(), DATA, **SETTINGS)
    run, model = RunDir.open(tmp_path), Tiny().eval()
    model.left = [7]
    with pytest.raises(KeyboardInterrupt):
        certify(model, DATA, **SETTINGS, run=run)
    kept = list((tmp_path / "shards").rglob("0*.json"))
    assert len(kept) == 1
    model.left = [20]
    resumed = certify(model, DATA, **SETTINGS, run=run)
    assert replace(resumed, seconds=0) == replace(whole, seconds=0)
    model.left = [0]
    assert certify(model, DATA, **SETTINGS, run=run) == resumed, "nothing is asked again"


def test_the_result_is_written_and_reads_back_as_it_was(tmp_path):
    run = RunDir.open(tmp_path)
    result = certify(Tiny().eval(), DATA, **SETTINGS, run=run, label="base")
    assert run.read_result("certify__base__sigma-0.25__n-9900") == result


def test_certificates_of_other_images_of_one_data_set_have_another_digest():
    model = Tiny().eval()
    whole, every_second = (certify(model, DATA, n0=2, n=4, skip=skip) for skip in (1, 2))
    first = certify(model, DATA, n0=2, n=4, limit=3)
    assert len({whole.data_digest, every_second.data_digest, first.data_digest}) == 3
    assert whole.model_digest == every_second.model_digest


@pytest.mark.parametrize("change", ["model", "data", "alpha", "skip"])
def test_other_work_under_the_same_name_is_refused(tmp_path, change):
    run = RunDir.open(tmp_path)
    certify(Tiny().eval(), DATA, **SETTINGS, run=run)
    model = Tiny(seed=1).eval() if change == "model" else Tiny().eval()
    data = (1 - DATA[0], DATA[1]) if change == "data" else DATA
    settings = {**SETTINGS, **({"alpha": 0.02} if change == "alpha" else {"skip": 2} if change == "skip" else {})}
    with pytest.raises(RunError, match="holds other work under the same name"):
        certify(model, data, **settings, run=run)


def test_plain_and_forged_views_of_one_model_are_told_apart(tmp_path):
    """Their saved tensors are the same; thresholds and modes are not."""
    model = seeded(ResidualNet)
    forge_(model, images(4))
    run, data = RunDir.open(tmp_path), (images(1), torch.tensor([0]))
    certify(plain(model), data, n0=2, n=4, run=run, label="x")
    with pytest.raises(RunError, match="holds other work"):
        certify(forged(model), data, n0=2, n=4, run=run, label="x")


def test_a_function_in_a_run_has_to_be_named(tmp_path):
    run, model = RunDir.open(tmp_path), Tiny().eval()
    with pytest.raises(InputError, match="say what it is with identity"):
        certify(lambda x: model(x), DATA, **SETTINGS, run=run)
    certify(lambda x: model(x), DATA, **SETTINGS, run=run, identity={"model": "tiny-0"})
    with pytest.raises(RunError, match="tiny-1"):
        certify(lambda x: model(x), DATA, **SETTINGS, run=run, identity={"model": "tiny-1"})
