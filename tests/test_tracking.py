"""Results and progress in TensorBoard's own event files, and what is said where a package is missing."""

import sys

import pytest
import torch

import lipforge as lf
from lipforge.tracking import TRACKERS, track
from tests.nets import ResidualNet, images, seeded

THREAT = lf.Threat("linf", "2/255")


@pytest.fixture(scope="module")
def reader():
    """TensorBoard's reader of event files."""
    module = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")

    def read(folder):
        found = module.EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0})
        found.Reload()
        return found

    return read


@pytest.fixture(scope="module")
def model():
    return seeded(ResidualNet)


def test_an_evaluation_is_logged_shard_by_shard_and_as_a_whole(model, reader, tmp_path):
    x = images(6)
    data = x, model(x).argmax(dim=1)
    with lf.log_to(f"tensorboard:{tmp_path}"):
        result = lf.evaluate(model, data, lf.FGSM(), THREAT, batch_size=2)
    found, name = reader(tmp_path), "model__fgsm__linf-2over255"
    robust = found.Scalars(f"{name}/robust")
    seen = torch.tensor(result.robust).double().cumsum(0)[1::2] / torch.tensor([2, 4, 6])
    assert [event.step for event in robust] == [2, 4, 6]
    assert [event.value for event in robust] == pytest.approx(seen.tolist(), abs=1e-6)  # float32
    (whole,) = found.Scalars(f"{name}/robust_accuracy")
    assert (whole.step, whole.value) == (6, pytest.approx(result.robust_accuracy, abs=1e-6))
    assert f"{name}/unreliable" not in found.Tags()["scalars"]
    text = found.Tensors(f"{name}/text_summary")[0].tensor_proto.string_val[0].decode()
    assert '"kind": "robust"' in text


def test_nothing_is_logged_outside_of_the_block(model, reader, tmp_path):
    with lf.log_to(f"tensorboard:{tmp_path}"):
        track("inside", {"x": 1, "no number": "a", "no number either": True}, step=3)
    track("outside", {"x": 1}, step=3)
    with lf.log_to(None):
        track("outside", {"x": 1}, step=3)
    assert reader(tmp_path).Tags()["scalars"] == ["inside/x"]


def test_the_file_is_closed_when_the_work_fails(reader, tmp_path):
    def fail():
        with lf.log_to(f"tensorboard:{tmp_path}"):
            track("before", {"x": 1}, step=1)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert reader(tmp_path).Tags()["scalars"] == ["before/x"]


def test_training_is_logged_epoch_by_epoch(reader, tmp_path):
    x = images(24)
    config = lf.TrainConfig(threat=THREAT, epochs=2, batch_size=8, holdout=8, crop=0, method="standard")
    with lf.log_to(f"tensorboard:{tmp_path / 'tb'}"):
        result = lf.train(seeded(ResidualNet), (x, torch.arange(24) % 4), config, out=tmp_path / "run")
    losses = reader(tmp_path / "tb").Scalars("train/loss")
    assert [(event.step, event.value) for event in losses] == [
        (entry["epoch"], pytest.approx(entry["loss"], abs=1e-5)) for entry in result.log
    ]


def test_only_the_first_rank_logs(monkeypatch, tmp_path):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with lf.log_to(f"tensorboard:{tmp_path / 'tb'}"):
        track("x", {"x": 1}, step=1)
    assert not (tmp_path / "tb").exists()


@pytest.mark.parametrize("package", ["mlflow", "wandb", "tensorboard"])
def test_a_package_that_is_missing_is_named_with_its_extra(package, monkeypatch):
    for name in [name for name in sys.modules if name.startswith("torch.utils.tensorboard")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)  # as if it were not installed
    with (
        pytest.raises(lf.LipforgeError, match=rf"'{package}': pip install 'lipforge\[{package}\]'"),
        lf.log_to(f"{package}:x"),
    ):
        pass


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("tensorbord:x", "log must be tensorboard:DIR.*did you mean 'tensorboard'"),
        ("tensorboard", "needs a folder: tensorboard:DIR"),
        ("csv:x", r"wandb\[:PROJECT\], got 'csv:x'$"),
    ],
)
def test_a_target_that_nobody_knows_is_refused(target, message):
    with pytest.raises(lf.LipforgeError, match=message), lf.log_to(target):
        pass


def test_a_tracker_that_does_not_start_is_an_error_of_one_line(monkeypatch):
    def refuse(place):
        raise RuntimeError(f"no server at {place}\nand many lines more")

    monkeypatch.setitem(TRACKERS, "mlflow", refuse)
    with pytest.raises(lf.LipforgeError, match=r"^mlflow did not start: no server at here$"), lf.log_to("mlflow:here"):
        pass
