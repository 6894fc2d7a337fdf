import dataclasses

import pytest
import torch
from torch import Tensor, nn

from lipforge.attacks import FGSM, PGD
from lipforge.data import from_arrays, load_data
from lipforge.errors import InputError, ModelError
from lipforge.evaluation import evaluate, score_saved, transfer
from lipforge.models import load_model
from lipforge.results import TransferResult
from lipforge.runs import RunDir
from lipforge.types import Threat
from tests.evaluation.toys import labelled, linear

THREAT = Threat("linf", "16/255")


def other(model: nn.Module, change: float) -> nn.Module:
    """A linear model near the given one, that calls bright images the same."""
    made = linear()
    noise = torch.randn(made[1].weight.shape, generator=torch.Generator().manual_seed(3))  # type: ignore[index]
    with torch.no_grad():
        made[1].weight.add_(change * (noise - noise.mean(dim=1, keepdim=True)))  # type: ignore[index]
    return made


def crafted(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """The best point for a linear model of two classes: eps against the sign of the difference of the weights."""
    weight = model[1].weight  # type: ignore[index]
    direction = (weight[1 - y] - weight[y]).sign().reshape(x.shape)
    return x + THREAT.eps * direction


def test_on_linear_models_the_target_meets_the_best_point_of_the_source():
    source = linear()
    target, (x, y) = other(source, 0.05), labelled(source, count=60)
    found = transfer(source, target, (x, y), PGD(steps=5), THREAT, refine=20)
    right = source(x).argmax(dim=1) == y
    # Images that the source gets wrong are not crafted.
    points = torch.where(right[:, None, None, None], crafted(source, x, y), x)
    robust = (target(x).argmax(dim=1) == y) & (target(points).argmax(dim=1) == y)
    assert found.robust == robust.tolist()
    assert 0 < found.transferred <= found.shared < sum(right)
    assert found.source_robust_accuracy == int((source(points).argmax(dim=1) == y).sum()) / 60


def test_the_counts_are_those_of_the_outcomes():
    source = linear()
    found = transfer(source, other(source, 0.05), labelled(source, count=60), FGSM(), THREAT)
    pairs = list(zip(found.source_outcome, found.outcome, strict=True))
    assert found.shared == sum(start == "fgsm" and end != "misclassified" for start, end in pairs)
    assert found.transferred == sum(start == "fgsm" and end == "transfer" for start, end in pairs)
    assert found.robust_accuracy == found.outcome.count("robust") / 60
    assert str(found).endswith(", n = 60")


def test_a_refined_point_fools_the_target_more_often():
    source, attack = linear(), PGD(steps=20, step_size=0.1, random_start=False)
    target, data = other(source, 0.05), labelled(source, count=60)
    near, far = (transfer(source, target, data, attack, THREAT, refine=steps).transferred for steps in (0, 20))
    assert near < far


def test_a_source_is_its_own_best_target():
    source = linear()
    found = transfer(source, source, labelled(source, count=60), FGSM(), THREAT, refine=0)
    assert found.transferred == found.shared > 0
    assert found.robust_accuracy == found.source_robust_accuracy


def test_a_run_keeps_the_result_and_resumes(tmp_path):
    source = linear()
    data = labelled(source, count=30)

    def once() -> TransferResult:
        with RunDir.open(tmp_path) as run:
            found = transfer(source, other(source, 0.1), data, FGSM(), THREAT, run=run, shard_size=7, names=("a", "b"))
        return dataclasses.replace(found, seconds=0.0)

    first = once()
    next((tmp_path / "shards").glob("transfer__a-to-b__*/0002.json")).unlink()
    assert once() == first
    (name,) = RunDir.open(tmp_path).results()
    assert name == first.name == "transfer__a-to-b__fgsm__linf-16over255"
    assert dataclasses.replace(RunDir.open(tmp_path).read_result(name), seconds=0.0) == first


def test_on_real_images_a_foreign_source_fools_less_than_the_target_itself():
    target, data = load_model("cifar10-resnet"), load_data("cifar10-sample", limit=16)
    source = load_model("resnet20", pretrained=False)
    threat = Threat("linf", "8/255")
    foreign = transfer(source, target, data, PGD(steps=3), threat, refine=2)
    own = transfer(target, target, data, PGD(steps=3), threat, refine=2)
    assert own.robust_accuracy < foreign.robust_accuracy <= foreign.clean_accuracy == own.clean_accuracy


def test_a_source_is_no_weaker_against_its_own_refined_points_than_it_says():
    source = linear()
    found = transfer(source, source, labelled(source, count=60), PGD(steps=2, step_size=0.1), THREAT)
    assert "refine" in found.source_outcome
    assert found.robust_accuracy == found.source_robust_accuracy
    assert found.transferred == found.shared


def test_a_target_in_training_mode_is_refused():
    with pytest.raises(ModelError, match="eval"):
        transfer(linear(), linear().train(), labelled(linear()), FGSM(), THREAT)


def test_a_negative_number_of_steps_is_refused():
    with pytest.raises(InputError, match="refine must be at least 0, got -1"):
        transfer(linear(), linear(), labelled(linear()), FGSM(), THREAT, refine=-1)


class Touchy(nn.Module):
    """Classifies these images correctly, and wrongly as soon as one of their pixels has changed."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        super().__init__()
        self.register_buffer("x", x)
        self.register_buffer("y", y)

    def forward(self, images: Tensor) -> Tensor:
        same = (images[:, None] == self.x[None]).flatten(2).all(dim=2)  # type: ignore[index]
        right = torch.nn.functional.one_hot(self.y[same.int().argmax(dim=1)], 2)  # type: ignore[index]
        return torch.where(same.any(dim=1, keepdim=True), right, 1 - right).float()


def test_saved_images_are_scored_with_robust_ones_moved_or_left_clean(tmp_path):
    source, run = linear(), RunDir.open(tmp_path)
    (x, y), threat = labelled(source, count=30), Threat("linf", "32/255")
    data = from_arrays(x.numpy(), y.tolist())
    made = evaluate(source, data, PGD(steps=3), threat, run=run, batch_size=7, save_images=True, show_progress=False)
    words = list(made.outcome)
    robust, wrong = words.count("robust"), words.count("misclassified")
    assert 0 < robust < 30 - wrong
    scores = {
        clean: score_saved(Touchy(x, y).eval(), data, made, threat, run, shard_size=7, leave_robust_clean=clean).correct
        for clean in (False, True)
    }
    assert scores == {False: wrong, True: robust + wrong}
    itself = score_saved(source, data, made, threat, run, shard_size=7)
    assert itself.accuracy == made.robust_accuracy
