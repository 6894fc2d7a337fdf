"""Whole runs on a toy task: it learns, it resumes to the same bits, it stops where it must; and the probe."""

import json
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import lipforge
from lipforge.attacks import PGD
from lipforge.errors import InputError, RunError, TrainingError
from lipforge.forge import forge_, set_mode_
from lipforge.training import TrainConfig, seeded, train
from lipforge.training.run import has_collapsed, probe
from lipforge.types import Threat
from tests.training.toys import toy_images, toy_net

CONFIG = TrainConfig(
    threat=Threat("linf", "8/255"), epochs=2, batch_size=32, lr=0.05, ema=0.9, crop=1, flip=False, holdout=64
)
DATA = toy_images(320)

# A process that writes a checkpoint after every batch and is killed when it asks for the fourth; before the batches it
# asks for the sample that identifies the data and for the held-out images.
KILLED_RUN = """
import os, signal, sys, torch
from lipforge.training import train
from lipforge.batching import PairData
from tests.training.test_run import CONFIG, DATA
from tests.training.toys import toy_net

class Deadly(PairData):
    calls = 0

    def batch(self, indices):
        self.calls += 1
        if self.calls == 6:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().batch(indices)

torch.set_num_threads(1)
train(toy_net(), Deadly(*DATA), CONFIG, out=sys.argv[1], checkpoint_seconds=0.0)
"""


@pytest.fixture(autouse=True)
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def _same(first, second):
    left, right = load_file(first), load_file(second)
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


@pytest.mark.parametrize(
    "settings",
    [
        {"method": "fgsm-rs"},
        {"method": "pgd-at", "steps": 3},
        {"method": "trades", "steps": 3},
        {"method": "pgd-at", "steps": 3, "awp": 0.005},
        {"method": "fgsm-rs", "optimizer": "adamw", "lr": 0.005, "schedule": "cosine", "clip": 1.0},
    ],
    ids=lambda settings: "-".join(str(value) for value in settings.values()),
)
def test_one_epoch_lowers_the_pgd_error(tmp_path, settings):
    model = toy_net()
    before = probe(model, *toy_images(200, seed=9), threat=CONFIG.threat, seed=0)
    config = replace(CONFIG, **{"epochs": 1, "lr": 0.1, "batch_size": 16, **settings})
    train(model, toy_images(640), config, out=tmp_path)
    after = probe(model, *toy_images(200, seed=9), threat=CONFIG.threat, seed=0)
    assert before.pgd < 0.3
    assert after.pgd > 0.5


def test_a_killed_run_resumes_to_the_same_bits(tmp_path):
    whole = train(toy_net(), DATA, CONFIG, out=tmp_path / "whole")
    out = tmp_path / "killed"
    source = Path(lipforge.__file__).parents[1]
    tests = Path(__file__).parents[2]
    command = [sys.executable, "-c", KILLED_RUN, str(out)]
    ended = subprocess.run(command, env={"PYTHONPATH": f"{source}:{tests}", "PATH": ""}, timeout=240, check=False)
    assert ended.returncode == -signal.SIGKILL
    position = torch.load(out / "checkpoint.pt", weights_only=True)["position"]
    assert (position["epoch"], position["batch"]) == (0, 3)
    resumed = train(toy_net(), DATA, CONFIG, out=out)
    assert _same(whole.weights, resumed.weights)


def test_a_finished_run_is_not_run_again(tmp_path):
    first = train(toy_net(), DATA, CONFIG, out=tmp_path)
    model = toy_net()
    second = train(model, DATA, CONFIG, out=tmp_path)
    assert second == first
    assert torch.equal(model.get_parameter("0.weight"), load_file(first.weights)["0.weight"])


def test_another_seed_gives_other_weights(tmp_path):
    first = train(toy_net(), DATA, replace(CONFIG, epochs=1), out=tmp_path / "a")
    second = train(toy_net(), DATA, replace(CONFIG, epochs=1, seed=1), out=tmp_path / "b")
    assert not _same(first.weights, second.weights)


def test_resuming_with_other_settings_is_refused_with_the_differences(tmp_path):
    train(toy_net(), DATA, replace(CONFIG, epochs=1), out=tmp_path)
    with pytest.raises(RunError, match=r"(?s)epochs: 1 recorded, 2 wanted.*lr: 0.05 recorded, 0.1 wanted"):
        train(toy_net(), DATA, replace(CONFIG, lr=0.1), out=tmp_path)


def test_resuming_a_run_of_an_older_version_is_refused(tmp_path):
    train(toy_net(), DATA, replace(CONFIG, epochs=1), out=tmp_path)
    path = tmp_path / "config.json"
    path.write_text(path.read_text().replace('"step_size"', '"step"'))
    with pytest.raises(RunError, match="started by an older lipforge"):
        train(toy_net(), DATA, replace(CONFIG, epochs=1), out=tmp_path)


def test_resuming_another_model_is_refused(tmp_path):
    train(toy_net(), DATA, replace(CONFIG, epochs=1), out=tmp_path)
    with pytest.raises(RunError, match=r"model: '11 tensors, .* recorded, '6 tensors, .* wanted"):
        train(toy_net(norm=False), DATA, replace(CONFIG, epochs=1), out=tmp_path)


def test_resuming_from_other_first_weights_is_refused(tmp_path):
    train(toy_net(), DATA, replace(CONFIG, epochs=1), out=tmp_path)
    with pytest.raises(RunError, match=r"start: '.*' recorded, '.*' wanted"):
        train(toy_net(seed=5), DATA, replace(CONFIG, epochs=1), out=tmp_path)


def test_resuming_with_another_ratio_or_backward_pass_is_refused(tmp_path):
    def forged(ratio, mode):
        model = toy_net().eval()
        forge_(model, DATA[0][:32], ratio=ratio, show_progress=False)
        set_mode_(model, mode)
        return model

    train(forged(2**-7, "forged"), DATA, replace(CONFIG, epochs=1), out=tmp_path)
    for other in (forged(2**-6, "forged"), forged(2**-7, "straight_through")):
        with pytest.raises(RunError, match=r"modules: '.*' recorded, '.*' wanted"):
            train(other, DATA, replace(CONFIG, epochs=1), out=tmp_path)


def test_resuming_on_other_images_is_refused(tmp_path):
    train(toy_net(), DATA, replace(CONFIG, epochs=1), out=tmp_path)
    with pytest.raises(RunError, match=r"data: .* recorded, .* wanted"):
        train(toy_net(), toy_images(320, seed=3), replace(CONFIG, epochs=1), out=tmp_path)


def test_a_damaged_checkpoint_is_reported_by_its_name(tmp_path):
    train(toy_net(), DATA, replace(CONFIG, epochs=1), out=tmp_path)
    (tmp_path / "checkpoint.pt").write_bytes(b"<html>")
    with pytest.raises(RunError, match=r"checkpoint\.pt cannot be read"):
        train(toy_net(), DATA, replace(CONFIG, epochs=1), out=tmp_path)


def test_a_diverging_loss_stops_with_its_step_and_keeps_the_last_good_state(tmp_path):
    class Breaking(torch.nn.Module):
        """Fine for one epoch of 8 batches, then NaN."""

        def __init__(self):
            super().__init__()
            self.net, self.calls = toy_net(), 0

        def forward(self, x):
            self.calls += self.training
            return self.net(x) * (float("nan") if self.calls > 10 else 1.0)

    with pytest.raises(TrainingError, match="at batch 3 of epoch 2"):
        train(Breaking(), DATA, CONFIG, out=tmp_path)
    state = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    assert state["position"]["epoch"] == 1
    assert all(tensor.isfinite().all() for tensor in state["model"].values())


def test_a_collapse_goes_back_to_the_last_good_epoch_with_smaller_steps(tmp_path):
    class Collapsing(torch.nn.Module):
        """Answers with nothing but the class 0 during its second and third probe."""

        def __init__(self):
            super().__init__()
            self.net, self.batches = toy_net(), 0

        def forward(self, x):
            self.batches += self.training
            logits = self.net(x)
            hidden = torch.zeros_like(logits)
            hidden[:, 0] = 1.0
            return hidden + 0 * logits if not self.training and self.batches in (16, 24) and len(x) == 64 else logits

    config = replace(CONFIG, epochs=3, ema=0.0, threat=Threat("linf", "2/255"))
    result = train(Collapsing(), DATA, config, out=tmp_path)
    assert [entry["event"] for entry in result.log] == ["epoch", "rollback", "rollback", "epoch", "epoch"]
    assert [entry["attack_step_size"] for entry in result.log] == pytest.approx(
        [1.25, 1.25, 1.25 * 0.75, 1.25 * 0.75**2, 1.25 * 0.75**2]
    )
    assert result.rollbacks == 2
    assert result.epochs == 3


def test_the_log_has_a_line_per_epoch(tmp_path):
    result = train(toy_net(), DATA, CONFIG, out=tmp_path)
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in lines] == [1, 2]
    assert lines == list(result.log)
    assert lines[1]["pgd_accuracy"] <= lines[1]["clean_accuracy"] <= 1
    assert result.pgd_accuracy == lines[1]["pgd_accuracy"]


def test_held_out_images_are_never_trained_on(tmp_path):
    class Watched:
        name, classes = "watched", 4

        def __init__(self):
            self.seen: list[list[int]] = []

        def __len__(self):
            return 320

        def batch(self, indices):
            self.seen.append(list(indices))
            return DATA[0][list(indices)], DATA[1][list(indices)]

        def batches(self, batch_size):
            raise AssertionError

    data = Watched()
    train(toy_net(), data, replace(CONFIG, epochs=1), out=tmp_path)
    _, held_out, *batches = data.seen  # the first look is at the sample that identifies the data
    trained = [index for batch in batches for index in batch]
    assert len(held_out) == 64
    assert len(trained) == len(set(trained)) == 256
    assert not set(held_out) & set(trained)


def test_too_few_images_are_refused(tmp_path):
    with pytest.raises(InputError, match="at least one batch of 32 images after 300 are held out"):
        train(toy_net(), DATA, replace(CONFIG, holdout=300), out=tmp_path)


def test_a_full_disk_loses_nothing_already_written(tmp_path, monkeypatch):
    train(toy_net(), DATA, replace(CONFIG, epochs=1), out=tmp_path / "whole")
    calls = []

    def full(descriptor):
        calls.append(descriptor)
        if len(calls) > 8:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        train(toy_net(), DATA, CONFIG, out=tmp_path / "full", checkpoint_seconds=0.0)
    monkeypatch.undo()
    resumed = train(toy_net(), DATA, CONFIG, out=tmp_path / "full")
    whole = train(toy_net(), DATA, CONFIG, out=tmp_path / "again")
    assert _same(resumed.weights, whole.weights)


def test_the_global_generator_is_the_same_after_training_and_after_a_seeded_block(tmp_path):
    state = torch.get_rng_state()
    train(toy_net(), DATA, replace(CONFIG, epochs=1), out=tmp_path)
    with seeded(3):
        first = torch.rand(3)
    with seeded(3):
        assert torch.equal(torch.rand(3), first)
    assert torch.equal(torch.get_rng_state(), state)


def test_data_with_more_classes_than_the_model_are_refused(tmp_path):
    images, labels = DATA
    with pytest.raises(InputError, match="the data have 10 classes but the model 4"):
        train(toy_net(), (images, labels + 6), CONFIG, out=tmp_path)


def test_the_probe_is_clean_accuracy_and_pgd_accuracy():
    model = toy_net()
    images, _ = toy_images(200)
    with torch.no_grad():
        labels = model.eval()(images).argmax(dim=1)
    labels[:50] = (labels[:50] + 1) % 4
    found = probe(model.train(), images, labels, threat=CONFIG.threat, seed=0)
    model.eval()
    x_adv = PGD(steps=10)(model, images, labels, threat=CONFIG.threat, seed=0)
    with torch.no_grad():
        robust = (model(x_adv).argmax(dim=1) == labels) & (model(images).argmax(dim=1) == labels)
    assert found.clean == 0.75
    assert 0.05 < found.pgd < 0.75
    assert found.pgd == pytest.approx(robust.float().mean().item())


def test_the_probe_leaves_the_model_in_train_mode():
    model = toy_net().train()
    probe(model, *toy_images(8), threat=CONFIG.threat, seed=0)
    assert model.training


@pytest.mark.parametrize(
    ("pgd", "best", "collapsed"),
    [(0.0, 0.35, True), (0.17, 0.35, True), (0.18, 0.35, False), (0.0, 0.05, False), (0.4, 0.35, False)],
)
def test_a_collapse_is_less_than_half_of_the_best_and_more_than_five_points(pgd, best, collapsed):
    assert has_collapsed(pgd, best) is collapsed
