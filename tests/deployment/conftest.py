"""One small forged model and its files, made once: an ONNX export takes seconds."""

from dataclasses import dataclass
from pathlib import Path

import pytest
from torch import Tensor, nn

import lipforge as lf
from tests.nets import ResidualNet, images, seeded


@dataclass(frozen=True)
class Shipped:
    """A forged model, images, and the folder with model.onnx, model.pt2 and model.safetensors."""

    model: nn.Module
    x: Tensor
    folder: Path
    results: dict[str, lf.ExportResult]

    def path(self, kind: str) -> Path:
        return self.folder / f"model.{kind}"


@pytest.fixture(scope="session")
def shipped(tmp_path_factory) -> Shipped:
    folder, x = tmp_path_factory.mktemp("shipped"), images(8)
    model = seeded(ResidualNet, width=4)
    lf.forge_(model, x, ratio=2**-4)
    results = {
        kind: lf.export(model, folder / f"model.{kind}", images=x, model_name="tiny")
        for kind in ("onnx", "pt2", "safetensors")
    }
    return Shipped(model, x, folder, results)
