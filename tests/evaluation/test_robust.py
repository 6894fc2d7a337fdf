"""Evaluations: what becomes of each image, and that nothing but the shard decides it."""

from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import lipforge.attacks.folding
from lipforge.attacks import APGD, PGD, Cascade, Square, fast
from lipforge.data import from_arrays
from lipforge.errors import InputError, ModelError, RunError
from lipforge.evaluation import evaluate
from lipforge.forge import forge_, forged, plain, set_ratio_, straight_through
from lipforge.runs import RunDir
from lipforge.statistics import clopper_pearson, compare, wilson
from lipforge.types import Threat
from tests.evaluation.toys import THREAT, labelled, linear, robust_images, untimed
from tests.nets import ResidualNet, images, seeded

MODEL = linear()
X, Y = labelled(MODEL)
ATTACK = PGD(steps=4, step_size=0.5, loss="margin")


def test_exactly_the_images_are_robust_that_no_attack_can_break():
    result = evaluate(MODEL, (X, Y), ATTACK, THREAT)
    right = (MODEL(X).argmax(dim=1) == Y).tolist()
    assert result.robust == robust_images(MODEL, X, Y)
    assert [word == "misclassified" for word in result.outcome] == [not one for one in right]
    assert set(result.outcome) == {"robust", "misclassified", "pgd"}
    assert (result.clean_accuracy, result.robust_accuracy) == (sum(right) / 22, result.outcome.count("robust") / 22)
    assert result.clean_interval == clopper_pearson(sum(right), 22)
    assert result.interval == clopper_pearson(result.outcome.count("robust"), 22)


def test_passes_are_those_of_the_attack_and_one_for_each_misclassified_image():
    result = evaluate(MODEL, (X, Y), ATTACK, THREAT, seed=3)
    right = (MODEL(X).argmax(dim=1) == Y).nonzero().squeeze(1)
    alone = ATTACK.run(MODEL, X[right], Y[right], threat=THREAT, seed=3, sample_ids=right)
    assert result.forwards == 22 - len(right) + int(alone.forwards.sum())
    assert result.backwards == int(alone.backwards.sum())


@pytest.mark.parametrize("attack", [PGD(steps=2), PGD(steps=2, restarts=2), APGD(steps=2), Square(queries=3)])
def test_images_that_are_all_wrong_take_one_forward_each(attack):
    result = evaluate(MODEL, (X[:4], 1 - MODEL(X[:4]).argmax(dim=1)), attack, Threat("l2", 0.5))
    assert result.outcome == ("misclassified",) * 4
    assert (result.forwards, result.backwards) == (4, 0)


def test_square_is_judged_on_all_images_also_where_some_are_wrong():
    """A classifier that gives gradients of 0 is broken by Square alone; 40 of its 100 images are misclassified."""

    def jump(x: Tensor) -> Tensor:
        logits = MODEL((16 * x).round() / 16)
        return logits + 0 * x.flatten(1).sum(dim=1, keepdim=True)

    x = 0.2 + 0.6 * images(100, size=4)
    y = jump(x).argmax(dim=1)
    y[:40] = 1 - y[:40]
    result = evaluate(jump, (x, y), fast(), Threat("linf", 0.3), batch_size=20)
    (note,) = [note for note in result.notes if note.kind == "square"]
    lost = sum(word == "probe" or word.startswith("square") for word in result.outcome)
    assert lost > 0
    assert (note.count, note.total) == (lost, 100)


@pytest.mark.parametrize("shard_size", [1, 5, 22, 100])
def test_neither_shards_nor_a_run_directory_change_the_result(tmp_path, shard_size):
    attack = Cascade((APGD(steps=3), Square(queries=5)))
    whole = untimed(evaluate(MODEL, (X, Y), attack, THREAT, batch_size=5))
    with RunDir.open(tmp_path) as run:
        first = evaluate(MODEL, (X, Y), attack, THREAT, run=run, batch_size=5, shard_size=shard_size)
        again = evaluate(MODEL, (X, Y), attack, THREAT, run=run, batch_size=5, shard_size=shard_size)
    assert first == again  # with its times: nothing was computed again
    if shard_size % 5 == 0 or shard_size > 22:
        assert untimed(first) == whole
    assert first.outcome == whole.outcome
    assert run.read_result(run.results()[0]) == again


def test_a_data_set_gives_what_the_pair_gives():
    data = from_arrays(X.numpy(), Y.numpy(), layout="NCHW", classes=2)
    assert evaluate(MODEL, data, ATTACK, THREAT).outcome == evaluate(MODEL, (X, Y), ATTACK, THREAT).outcome


def test_a_function_is_a_classifier_too():
    assert evaluate(lambda x: MODEL(x), (X, Y), ATTACK, THREAT).robust == robust_images(MODEL, X, Y)


def test_wilson_intervals_on_request():
    result = evaluate(MODEL, (X, Y), ATTACK, THREAT, interval="wilson")
    assert result.interval == wilson(result.outcome.count("robust"), 22)
    assert result.interval_method == "wilson"


def test_saved_images_are_inside_the_threat_and_break_what_they_say(tmp_path):
    with RunDir.open(tmp_path) as run:
        result = evaluate(MODEL, (X, Y), ATTACK, THREAT, run=run, batch_size=8, save_images=True)
    files = sorted(tmp_path.glob("shards/*/*.safetensors"))
    kept = torch.cat([load_file(file)["images"] for file in files])
    assert [len(load_file(file)["images"]) for file in files] == [8, 8, 6]
    assert float((kept - X).abs().max()) <= THREAT.eps + 1e-7  # half a unit in the last place of a float32 below 1
    assert (MODEL(kept).argmax(dim=1) == Y).tolist() == result.robust


def test_images_that_are_gone_or_were_never_kept_are_made_again(tmp_path):
    with RunDir.open(tmp_path) as run:
        before = evaluate(MODEL, (X, Y), ATTACK, THREAT, run=run, batch_size=8)
        for _ in range(2):
            after = evaluate(MODEL, (X, Y), ATTACK, THREAT, run=run, batch_size=8, save_images=True)
            assert untimed(after) == untimed(before)
            files = sorted(tmp_path.glob("shards/*/*.safetensors"))
            assert len(files) == 3
            files[1].unlink()


def test_images_that_were_cut_short_are_made_again(tmp_path):
    with RunDir.open(tmp_path) as run:
        evaluate(MODEL, (X, Y), ATTACK, THREAT, run=run, batch_size=8, save_images=True)
        path = next(tmp_path.glob("shards/*/0001.safetensors"))
        whole = path.read_bytes()
        path.write_bytes(whole[:-40])
        evaluate(MODEL, (X, Y), ATTACK, THREAT, run=run, batch_size=8, save_images=True)
    assert path.read_bytes() == whole


CHANGES: dict[str, dict[str, Any]] = {
    r"data\.digest": {"data": (X.flip(0), Y)},
    "model has other weights": {"classifier": linear(classes=3)},
    "batch_size was 100, now 7": {"batch_size": 7, "shard_size": 100},
    "shard_size was 100, now 50": {"shard_size": 50},
    r"model\.identity was None, now \{'recipe': 'other'\}": {"identity": {"recipe": "other"}},
}


@pytest.mark.parametrize("named", CHANGES)
def test_another_evaluation_under_the_same_name_is_refused_with_the_differences(tmp_path, named):
    arguments: dict[str, Any] = {"classifier": MODEL, "data": (X, Y), "attack": ATTACK, "threat": THREAT}
    with RunDir.open(tmp_path) as run:
        evaluate(**arguments, run=run)
        with pytest.raises(RunError, match=named):
            evaluate(**{**arguments, **CHANGES[named]}, run=run)


def test_other_labels_attacks_threats_and_seeds_share_a_run(tmp_path):
    with RunDir.open(tmp_path) as run:
        evaluate(MODEL, (X, Y), ATTACK, THREAT, run=run)
        evaluate(MODEL, (X, Y), ATTACK, THREAT, run=run, label="other")
        evaluate(MODEL, (X, Y), PGD(steps=2), THREAT, run=run)
        evaluate(MODEL, (X, Y), ATTACK, Threat("l2", 0.5), run=run)
        evaluate(MODEL, (X, Y), ATTACK, THREAT, run=run, seed=1)
    assert len(run.results()) == 5


def test_a_forged_model_is_told_from_the_plain_one_and_from_another_ratio(tmp_path):
    model, pair = seeded(ResidualNet, width=2), (images(4, size=8), torch.zeros(4, dtype=torch.int64))
    forge_(model, pair[0], ratio=0.01)
    before = forged(model)
    set_ratio_(model, 0.02)
    with RunDir.open(tmp_path) as run:
        evaluate(before, pair, PGD(steps=1), THREAT, run=run)
        for other in (plain(model), forged(model)):
            with pytest.raises(RunError, match="model has other layers"):
                evaluate(other, pair, PGD(steps=1), THREAT, run=run)
        set_ratio_(model, 0.01)
        with pytest.raises(RunError, match="model has other layers"):
            evaluate(straight_through(model), pair, PGD(steps=1), THREAT, run=run)
        evaluate(forged(model), pair, PGD(steps=1), THREAT, run=run)


def test_bad_input_is_named():
    with pytest.raises(InputError, match="save_images needs a run directory"):
        evaluate(MODEL, (X, Y), ATTACK, THREAT, save_images=True)
    with pytest.raises(InputError, match="batch_size must be auto or a whole number of at least 1, got 0"):
        evaluate(MODEL, (X, Y), ATTACK, THREAT, batch_size=0)
    with pytest.raises(InputError, match="data must be a data set"):
        evaluate(MODEL, X, ATTACK, THREAT)
    with pytest.raises(InputError, match=r"attack must be an attack such as PGD\(steps=50\).*, got 3"):
        evaluate(MODEL, (X, Y), 3, THREAT)  # type: ignore[arg-type]  # the mistake under test
    with pytest.raises(InputError, match="one per image, got"):
        evaluate(MODEL, (X, Y[:3]), ATTACK, THREAT)
    with pytest.raises(InputError, match=r"images must lie in \[0, 1\].*image 7"):
        evaluate(MODEL, (torch.where(torch.arange(22)[:, None, None, None] == 7, 3.0, X), Y), ATTACK, THREAT)
    with pytest.raises(ModelError, match="eval mode"):
        evaluate(linear().train(), (X, Y), ATTACK, THREAT)
    with pytest.raises(InputError, match="the interval must be one of clopper-pearson, wilson"):
        evaluate(MODEL, (X, Y), ATTACK, THREAT, interval="wald")  # type: ignore[arg-type]


def test_a_function_gets_its_images_on_the_device_that_is_given():
    """Nothing can be computed on the device `meta`: an evaluation that ignored it would succeed."""
    with pytest.raises(RuntimeError, match="meta"):
        evaluate(lambda x: MODEL(x), (X, Y), ATTACK, THREAT, device=torch.device("meta"))


def test_an_attack_of_the_user_needs_only_a_name_and_run():
    class Mine:
        name = "mine"

        def run(self, *arguments: Any, **keywords: Any) -> Any:
            return ATTACK.run(*arguments, **keywords)

    found = evaluate(MODEL, (X, Y), Mine(), THREAT)  # type: ignore[arg-type]
    assert found.outcome == evaluate(MODEL, (X, Y), ATTACK, THREAT).outcome


@pytest.mark.parametrize("attack", [fast(), Cascade((fast(), PGD(steps=2)))], ids=["fast", "cascade"])
def test_a_folded_copy_is_made_once_per_run_and_not_per_batch(attack, monkeypatch):
    model = seeded(ResidualNet, width=4)
    x = images(12, size=8)
    made: list[int] = []
    real = lipforge.attacks.folding.folded_copy

    def counted(*given: Any) -> Any:
        made.append(1)
        return real(*given)

    monkeypatch.setattr("lipforge.attacks.folding.folded_copy", counted)
    evaluate(model, (x, model(x).argmax(dim=1)), attack, THREAT, batch_size=4)
    assert len(made) == 1


def test_results_on_the_same_images_compare_whatever_the_data_are_called():
    one = evaluate(MODEL, from_arrays(X.numpy(), Y.numpy(), layout="NCHW", name="cifar10"), ATTACK, THREAT)
    two = evaluate(MODEL, from_arrays(X.numpy(), Y.numpy(), layout="NCHW", name="cifar10:test"), ATTACK, THREAT)
    assert one.data != two.data
    assert compare(one, two).count == 22
