"""`lipforge train`, as a user runs it: killed, resumed, refused, and with forged functions at work."""

import signal
import subprocess
import sys

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import lipforge
from lipforge.data import load_data
from tests.schemas import result_of

SETTINGS = "--arch resnet8:width=8 --method fgsm-rs --epochs 1 --limit 2000 --batch-size 50 --holdout 50 --lr 0.05"

# `python -m lipforge`, which is killed when its third checkpoint is about to take the place of the second.
KILLED = """
import os, runpy, signal, sys
renames = []

def watch(event, arguments):
    if event == "os.rename" and str(arguments[1]).endswith("checkpoint.pt"):
        renames.append(arguments)
        if len(renames) == 3:
            os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(watch)
runpy.run_module("lipforge", run_name="__main__", alter_sys=True)
"""


@pytest.fixture(autouse=True)
def _one_thread():
    """Sums of floats depend on the number of threads, and the process that is killed has one."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def images(tmp_path_factory) -> str:
    """2,100 real training images: those in the package, several times over, at half their size."""
    sample = load_data("cifar10-sample:train")
    x, y = sample.batch(list(range(500)))
    small = torch.nn.functional.avg_pool2d(x, 2)
    path = tmp_path_factory.mktemp("data") / "train.npz"
    shots = (255 * small).round().to(torch.uint8).permute(0, 2, 3, 1).repeat(5, 1, 1, 1)[:2100]
    np.savez(path, images=shots.numpy(), labels=y.repeat(5)[:2100].numpy())
    return f"npz:{path}"


@pytest.mark.slow
def test_a_killed_command_resumes_to_bit_identical_weights(images, tmp_path, environment, run):
    arguments = ["train", *SETTINGS.split(), "--data", images]
    assert run(*arguments, "--out", tmp_path / "whole").code == 0
    killed = tmp_path / "killed"
    command = [sys.executable, "-c", KILLED, *arguments, "--checkpoint-seconds", "0", "--out", str(killed)]
    ended = subprocess.run(command, env=environment, timeout=300, check=False)
    assert ended.returncode == -signal.SIGKILL
    position = torch.load(killed / "checkpoint.pt", weights_only=True)["position"]
    assert (position["epoch"], position["batch"]) == (0, 2)
    assert not (killed / "weights.safetensors").exists()
    assert run(*arguments, "--out", killed).code == 0
    assert (killed / "weights.safetensors").read_bytes() == (tmp_path / "whole" / "weights.safetensors").read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("backward", ["forged", "straight_through"])
def test_forge_aware_fine_tuning_changes_weights_but_not_keys(tmp_path, backward, run):
    recipe = tmp_path / "recipe.json"
    model = lipforge.load_model("cifar10-resnet")
    data = load_data("cifar10-sample:train", limit=64)
    lipforge.forge_(model, data, ratio=2**-6)
    lipforge.save_recipe(recipe, model)
    arguments = f"--arch cifar10-resnet --pretrained --recipe {recipe} --backward {backward} --limit 64 --holdout 16"
    rest = f"--epochs 1 --batch-size 32 --lr 0.01 --out {tmp_path / 'tuned'} --json"
    result = result_of(run("train", "--data", "cifar10-sample:train", *arguments.split(), *rest.split()).out)
    tuned, before = load_file(tmp_path / "tuned" / "weights.safetensors"), lipforge.load_model("cifar10-resnet")
    assert result["epochs"] == 1
    assert tuned.keys() == before.state_dict().keys()
    assert not torch.equal(tuned["linear.weight"], before.state_dict()["linear.weight"])


def test_a_backward_pass_that_does_not_exist_is_refused(images, tmp_path, run):
    ended = run("train", "--data", images, "--backward", "sideways", "--out", tmp_path)
    assert ended.code == 2
    assert "backward must be forged or straight_through, got 'sideways'" in ended.err
