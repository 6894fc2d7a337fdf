"""Everything that takes minutes goes through one driver: each kind of work keeps, resumes, heals and refuses alike."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lipforge.attacks import FGSM, PGD
from lipforge.auditing import audit
from lipforge.auditing.plan import Plan
from lipforge.certification import certify
from lipforge.errors import InputError, RunError
from lipforge.evaluation import evaluate, sweep, transfer
from lipforge.records import to_builtins
from lipforge.runs import RunDir
from lipforge.search.choose import choose_ratio
from lipforge.types import Threat
from tests.evaluation.toys import labelled, linear

ATTACK, THREAT = PGD(steps=2), Threat("linf", "8/255")
PLAN = Plan(ATTACK, FGSM(), FGSM(), check_images=4, check_queries=2, shard_size=8)
MODEL = linear()
DATA = labelled(MODEL)
Work = Callable[[nn.Module, Any, RunDir | None], Any]


class Counted(nn.Module):
    """The model, and how many images it was asked about."""

    def __init__(self, bias: float = 0.0) -> None:
        super().__init__()
        self.model, self.seen = linear(), [0]
        with torch.no_grad():
            self.model[1].bias.add_(bias)  # type: ignore[index]
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        self.seen[0] += len(x)
        logits: Tensor = self.model(x)
        return logits


WORK: dict[str, Work] = {
    "evaluate": lambda model, data, run: evaluate(model, data, ATTACK, THREAT, run=run, shard_size=8),
    "sweep": lambda model, data, run: sweep({"a": model}, data, [ATTACK], [THREAT], run=run, shard_size=8),
    "transfer": lambda model, data, run: transfer(model, MODEL, data, ATTACK, THREAT, run=run, shard_size=8),
    "search": lambda model, data, run: choose_ratio(
        lambda ratio: {"only": model},
        data,
        attack=ATTACK,
        threat=THREAT,
        metric="union",
        ratios=[0.5],
        run=run,
        shard_size=8,
    ),
    "audit": lambda model, data, run: audit(model, MODEL, data, THREAT, plan=PLAN, run=run),
    "certify": lambda model, data, run: certify(model, data, n0=2, n=4000, run=run),
}


def untimed(result: Any) -> Any:
    """The result as JSON without its times."""

    def strip(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: strip(item) for key, item in value.items() if key != "seconds"}
        return [strip(item) for item in value] if isinstance(value, list) else value

    assert dataclasses.is_dataclass(result)
    return strip(to_builtins(result))


def shards(folder: Path) -> list[Path]:
    return sorted(path for path in (folder / "shards").glob("*/*.json") if path.stem.isdecimal())


@pytest.mark.parametrize("name", WORK)
def test_a_run_gives_what_memory_gives_and_keeps_the_result(name, tmp_path):
    kept = WORK[name](Counted(), DATA, RunDir.open(tmp_path))
    assert untimed(kept) == untimed(WORK[name](Counted(), DATA, None))
    (result,) = RunDir.open(tmp_path).results()
    assert RunDir.open(tmp_path).read_result(result) == kept


@pytest.mark.parametrize("name", WORK)
def test_a_finished_run_asks_the_model_nothing(name, tmp_path):
    model = Counted()
    first, seen = WORK[name](model, DATA, RunDir.open(tmp_path)), model.seen[0]
    assert WORK[name](model, DATA, RunDir.open(tmp_path)) == first
    # An audit looks at one image of each side to count the classes.
    assert model.seen[0] - seen <= 2 * (name == "audit")


@pytest.mark.parametrize("name", WORK)
@pytest.mark.parametrize("damage", ["gone", "cut"])
def test_a_shard_that_is_gone_or_cut_short_is_computed_again_and_no_other(name, damage, tmp_path, recwarn):
    model = Counted()
    first, seen = WORK[name](model, DATA, RunDir.open(tmp_path)), model.seen[0]
    path = shards(tmp_path)[-1]
    content = path.read_bytes()
    path.unlink() if damage == "gone" else path.write_bytes(content[:-9])
    again = WORK[name](model, DATA, RunDir.open(tmp_path))
    assert untimed(again) == untimed(first)
    assert json.loads(path.read_bytes())["first"] == json.loads(content)["first"]
    assert 0 < model.seen[0] - seen < seen
    assert len(recwarn) == (damage == "cut")


@pytest.mark.parametrize("name", WORK)
def test_other_weights_or_other_images_in_the_same_run_are_refused(name, tmp_path):
    WORK[name](Counted(), DATA, RunDir.open(tmp_path))
    with pytest.raises(RunError, match=r"models\..* has other weights"):
        WORK[name](Counted(bias=0.1), DATA, RunDir.open(tmp_path))
    with pytest.raises(RunError, match="data"):
        WORK[name](Counted(), (DATA[0].flip(0), DATA[1]), RunDir.open(tmp_path))


@pytest.mark.parametrize("name", WORK)
def test_images_outside_0_1_are_refused_in_the_one_place_that_reads_them(name):
    with pytest.raises(InputError, match=r"images must lie in \[0, 1\]"):
        WORK[name](Counted(), (DATA[0] * 3, DATA[1]), None)
