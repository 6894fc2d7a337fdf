"""Small settings in the paper's layout: bundled models under the names of the tables, and short attacks."""

from collections.abc import Mapping
from dataclasses import replace

from lipforge.paper import load_settings
from lipforge.paper.settings import PaperData, Settings
from lipforge.reproduction import Source

SAMPLE = PaperData("cifar10-sample:test", "cifar10-sample:train", calibrate=16)


def settings(specs: Mapping[str, str]) -> Settings:
    """The paper's settings on the sample of CIFAR-10, with `cifar10-resnet` for every model that has no other spec."""
    paper = load_settings()
    models = [replace(model, spec=specs.get(model.model, "cifar10-resnet"), clean=80.0) for model in paper.models]
    return replace(
        paper,
        models=tuple(models),
        datasets=dict.fromkeys(paper.datasets, SAMPLE),
        attacks=paper.stand_in.attacks,
        variants={**paper.variants, "5000 images": replace(paper.variants["5000 images"], calibrate=6)},
    )


def source(specs: Mapping[str, str] | None = None, *, limit: int = 6) -> Source:
    return Source(limit=limit, settings=settings(specs or {}))
