import dataclasses

import pytest
import torch
from torch import Tensor, nn

from lipforge.attacks import CW, FGSM, PGD
from lipforge.data import load_data
from lipforge.errors import InputError, RunError
from lipforge.evaluation import evaluate
from lipforge.evaluation.sweeps import sweep, sweep_name
from lipforge.models import load_model
from lipforge.results import Note, SweepResult
from lipforge.runs import RunDir
from lipforge.types import Threat
from tests.evaluation.toys import labelled, linear

EPS = ("1/255", "4/255", "16/255")
THREATS = [Threat("linf", eps) for eps in EPS]


def untimed(result: SweepResult) -> SweepResult:
    return dataclasses.replace(
        result, seconds=0.0, rows=tuple(dataclasses.replace(row, seconds=0.0) for row in result.rows)
    )


def known(model: nn.Module, x: Tensor, y: Tensor, eps: float) -> list[bool]:
    """Two classes: an image is robust if its margin beats eps times the l1 norm of the difference of the weights."""
    weight = model[1].weight  # type: ignore[index]
    logits, rows = model(x), torch.arange(len(y))
    margin = logits[rows, y] - logits[rows, 1 - y]
    return (margin > eps * (weight[0] - weight[1]).abs().sum()).tolist()


@pytest.mark.parametrize("carry", [True, False])
def test_on_a_linear_model_every_row_has_the_closed_form(carry):
    model = linear()
    data = labelled(model, count=40)
    found = sweep({"a": model}, data, [FGSM()], THREATS, carry=carry, shard_size=16)
    assert [row.robust for row in found.rows] == [known(model, *data, threat.eps) for threat in THREATS]
    assert 0 < sum(found.rows[-1].robust) < sum(found.rows[0].robust)
    assert all(row.clean_accuracy == 0.8 for row in found.rows)


def test_rows_come_by_classifier_then_attack_then_rising_eps():
    model = linear()
    found = sweep({"a": model, "b": linear(2)}, labelled(model), [FGSM(), PGD(steps=2)], THREATS[::-1])
    assert [(row.label, row.attack, row.threat) for row in found.rows] == [
        (label, attack, f"linf {eps}") for label in "ab" for attack in ("fgsm", "pgd:steps=2") for eps in EPS
    ]


def test_images_broken_at_a_smaller_eps_are_carried_and_cost_nothing_more():
    model = linear()
    data = labelled(model, count=40)
    carried, fresh = (sweep({"a": model}, data, [FGSM()], THREATS, carry=carry) for carry in (True, False))
    fooled = [32 - sum(row.robust) for row in carried.rows]
    assert [row.carried for row in carried.rows] == [0, *fooled[:-1]]
    assert [row.carried for row in fresh.rows] == [0, 0, 0]
    assert [row.backwards for row in carried.rows] == [32, *(32 - lost for lost in fooled[:-1])]
    assert [row.backwards for row in fresh.rows] == [32, 32, 32]


class OnlyTiny(nn.Module):
    """Two classes; what moves any pixel by more than 0.03 brings the image back: no attack of one big step works."""

    def __init__(self, x: Tensor) -> None:
        super().__init__()
        self.clean = nn.Parameter(x, requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        moved = torch.cdist(x.flatten(1), self.clean.flatten(1), p=torch.inf).amin(dim=1)
        score = x.mean(dim=(1, 2, 3)) - self.clean.mean() + torch.where(moved > 0.03, 5.0, 0.001)
        return torch.stack([score, -score], dim=1)


def test_an_accuracy_that_rises_with_eps_is_called_suspicious_and_carrying_hides_it():
    x = torch.full((4, 3, 4, 4), 0.5)
    data = x, torch.zeros(4, dtype=torch.int64)
    model = OnlyTiny(x).eval()
    fresh = sweep({"a": model}, data, [FGSM()], THREATS[1:], carry=False)
    assert [row.robust_accuracy for row in fresh.rows] == [0.0, 1.0]
    text = "a: 4 of 4 images are robust to fgsm at linf 16/255, but only 0 to fgsm at linf 4/255: masked gradients?"
    assert fresh.notes == (Note("rises_with_eps", text),)
    carried = sweep({"a": model}, data, [FGSM()], THREATS[1:])
    assert [row.robust_accuracy for row in carried.rows] == [0.0, 0.0]
    assert carried.carry


def test_one_step_that_breaks_more_than_many_steps_is_called_suspicious():
    model = linear()
    weak = PGD(steps=1, step_size=1e-6, random_start=False)
    found = sweep({"a": model}, labelled(model, count=40), [FGSM(), weak], THREATS[2:])
    assert len(found.notes) == 1
    assert "images are robust to pgd:" in str(found.notes[0])
    assert str(found.notes[0]).endswith("to fgsm at linf 16/255: masked gradients?")


def test_a_run_resumes_to_the_same_result_and_keeps_it(tmp_path):
    model = linear()
    data = labelled(model)

    def once(**changes: object) -> SweepResult:
        with RunDir.open(tmp_path) as run:
            return sweep({"a": model}, data, [PGD(steps=2)], THREATS, run=run, shard_size=8, **changes)  # type: ignore[arg-type]

    first = once()
    next((tmp_path / "shards").glob("sweep__*/0001.json")).unlink()
    assert untimed(once()) == untimed(first) == untimed(sweep({"a": model}, data, [PGD(steps=2)], THREATS))
    assert untimed(RunDir.open(tmp_path).read_result(sweep_name(first))) == untimed(first)
    with pytest.raises(RunError, match="carry was True, now False"):
        once(carry=False)


def test_on_real_images_the_first_eps_is_an_evaluation_and_the_paper_layout_holds():
    model, data = load_model("cifar10-resnet"), load_data("cifar10-sample", limit=12)
    found = sweep({"base": model}, data, [PGD(steps=3), CW(steps=3)], [Threat("linf", "8/255"), Threat("linf", 0.25)])
    alone = evaluate(model, data, PGD(steps=3), Threat("linf", "8/255"))
    assert found.rows[0].outcome == alone.outcome
    assert found.rows[0].interval == alone.interval
    assert [row.attack for row in found.rows] == ["pgd:steps=3", "pgd:steps=3", "cw:steps=3", "cw:steps=3"]
    assert found.rows[1].robust_accuracy == 0.0


def test_what_cannot_be_swept_is_refused():
    model = linear()
    with pytest.raises(InputError, match="at least one entry"):
        sweep({"a": model}, labelled(model), [], THREATS)
    with pytest.raises(InputError, match=r"share one norm, got linf 1/255, l2 0\.5"):
        sweep({"a": model}, labelled(model), [FGSM()], [THREATS[0], Threat("l2", 0.5)])


def test_two_sweeps_in_one_run_keep_their_results_apart(tmp_path):
    model = linear()
    with RunDir.open(tmp_path) as run:
        for attack in (PGD(steps=1), PGD(steps=2)):
            sweep({"a": model}, labelled(model), [attack], THREATS, run=run)
        assert len(run.results()) == 2
