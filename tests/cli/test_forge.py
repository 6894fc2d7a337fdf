import json
import os
import subprocess
import sys

import pytest
import torch
from safetensors.torch import save_file

from lipforge.data import load_data
from lipforge.forge import forge_, load_recipe, parse_mask
from lipforge.models import load_model
from tests.schemas import result_of

SMALL = ("--data", "cifar10-sample:train", "--limit", 32)


class _Hostile:
    """Unpickling this creates a file, if anything lets it."""

    def __init__(self, target):
        self.command = f"touch {target}"

    def __reduce__(self):
        return os.system, (self.command,)


def files(folder):
    return {path.name for path in folder.iterdir() if path.is_file()}


def test_the_recipe_has_the_bounds_of_the_library(run, tmp_path):
    ended = run("forge", "resnet20", "--no-weights", *SMALL, "--mask", "piecewise:d=0.25", "--ratio", "2^-6")
    assert (ended.code, ended.err) == (0, "")
    expected = forge_(
        load_model("resnet20", pretrained=False),
        load_data("cifar10-sample:train", limit=32),
        mask=parse_mask("piecewise:d=0.25"),
        ratio=2**-6,
    )
    assert load_recipe(tmp_path / "recipe.json") == expected
    title = " ".join(ended.out.split())
    assert title.startswith("resnet20: Piecewise(d=0.25), ratio 2^-6, 32 images of cifar10-sample:train/first 32, ")
    assert "wrote recipe.json" in ended.out


@pytest.mark.parametrize(
    ("options", "keywords"),
    [
        (["--per-channel"], {"per_channel": True}),
        (["--quantile", "0.9"], {"quantile": 0.9}),
        (["--rule", "name:*2", "--exclude", "conv2"], None),
        (["--include", "conv1", "--batch-size", "5"], {"include": ["conv1"], "batch_size": 5}),
        (["--mask", "mean-centred", "--ratio", "1/4"], {"mask": parse_mask("mean-centred"), "ratio": 0.25}),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_every_option_reaches_the_library(run, tmp_path, model_file, options, keywords):
    spec = f"{model_file}:build"
    ended = run("forge", spec, *SMALL, *options, "--out", "deep/er/r.json")
    if keywords is None:
        assert ended.code == 2
        assert "matches a glob of exclude (conv2)" in ended.err
        return
    assert ended.code == 0
    expected = forge_(load_model(spec), load_data("cifar10-sample:train", limit=32), **keywords)
    assert load_recipe(tmp_path / "deep" / "er" / "r.json") == expected


def test_a_data_seed_draws_other_images(run, tmp_path, model_file):
    run("forge", f"{model_file}:build", *SMALL, "--data-seed", 3)
    expected = forge_(load_model(f"{model_file}:build"), load_data("cifar10-sample:train", limit=32, seed=3))
    assert load_recipe(tmp_path / "recipe.json") == expected
    assert expected.data == "cifar10-sample:train/random 32"


def test_json_is_the_recipe_and_nothing_else(run_process, tmp_path, model_file):
    ended = run_process("forge", f"{model_file}:build", *SMALL, "--json", "--out", "r.json")
    assert (ended.code, ended.err) == (0, "")
    printed = result_of(ended.out)
    assert printed.pop("kind") == "recipe"
    assert printed.pop("digest") == load_recipe(tmp_path / "r.json").digest
    assert (printed.pop("model"), printed.pop("out")) == (f"{model_file}:build", "r.json")
    assert printed.pop("seconds") >= 0
    assert printed == json.loads((tmp_path / "r.json").read_text())


@pytest.mark.parametrize("kind", ["pt", "safetensors"])
def test_weights_of_a_file_are_the_ones_that_are_calibrated(run, tmp_path, model_file, kind):
    trained = load_model(f"{model_file}:build", seed=7)
    path = tmp_path / f"weights.{kind}"
    torch.save({"net": trained.state_dict()}, path) if kind == "pt" else save_file(trained.state_dict(), path)
    assert run("forge", f"{model_file}:build", "--weights", path, *SMALL).code == 0
    expected = forge_(trained, load_data("cifar10-sample:train", limit=32))
    assert load_recipe(tmp_path / "recipe.json") == expected
    assert expected.bounds != forge_(load_model(f"{model_file}:build"), load_data("cifar10-sample", limit=32)).bounds


WRONG = {
    "model": (["resnet2O", "--no-weights"], "no model 'resnet2O'"),
    "weights missing": (["resnet20"], "--weights"),
    "weights and no weights": (["resnet20", "--weights", "x.pt", "--no-weights"], "exclude each other"),
    "weights file": (["resnet20", "--weights", "none.pt"], "no checkpoint file none.pt"),
    "weights folder": (["resnet20", "--weights-dir", "none"], "weights_dir none is not a directory"),
    "rule": (["resnet20", "--no-weights", "--rule", "convs"], "unknown rule 'convs'"),
    "mask": (["resnet20", "--no-weights", "--mask", "stairs"], "mask must be one of"),
    "mask parameter": (["resnet20", "--no-weights", "--mask", "step:d=1"], "mask 'step' has no parameter 'd'"),
    "ratio": (["resnet20", "--no-weights", "--ratio", "half"], "ratio must be a number"),
    "negative ratio": (["resnet20", "--no-weights", "--ratio", "-1"], "ratio must"),
    "quantile": (["resnet20", "--no-weights", "--quantile", "2"], "quantile must lie in (0, 1], got 2"),
    "limit": (["resnet20", "--no-weights", "--limit", "0"], "limit must be at least 1, got 0"),
    "batch size": (["resnet20", "--no-weights", "--batch-size", "0"], "batch_size must be at least 1, got 0"),
    "data": (["resnet20", "--no-weights", "--data", "cifar11"], "no data set 'cifar11'; did you mean cifar10"),
    "split": (["resnet20", "--no-weights", "--data", "cifar10-sample:dev"], "names no split"),
    "folder": (["resnet20", "--no-weights", "--data", "folder:none"], "no folder none"),
    "interpolation": (["resnet20", "--no-weights", "--interpolation", "box"], "interpolation must be one of"),
    "on error": (["resnet20", "--no-weights", "--on-error", "cry"], "on_error must be 'raise' or 'skip'"),
    "device": (["resnet20", "--no-weights", "--device", "abacus"], "device must be one that torch can use here"),
}


@pytest.mark.parametrize(("arguments", "complaint"), WRONG.values(), ids=WRONG.keys())
def test_bad_input_is_one_line_that_names_it_and_nothing_is_written(run, tmp_path, arguments, complaint):
    data = [] if "--data" in arguments else ["--data", "cifar10-sample:train"]
    ended = run("forge", *arguments, *data)
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith("error: ")
    assert complaint in ended.err
    assert len(ended.err.splitlines()) == 1
    assert files(tmp_path) == set()


def test_a_failed_calibration_leaves_the_old_recipe(run, tmp_path, model_file):
    model_file.write_text(
        model_file.read_text().replace("F.relu(self.stem(x))", "F.relu(self.stem(x)) / x.sub(x).sum()")
    )
    (tmp_path / "r.json").write_text("old")
    ended = run("forge", f"{model_file}:build", *SMALL, "--out", "r.json")
    assert ended.code == 2
    assert "error: site 'conv1' saw a non-finite activation in image 0" in ended.err
    assert (tmp_path / "r.json").read_text() == "old"
    assert files(tmp_path) == {"mine.py", "r.json"}


@pytest.mark.parametrize(
    ("out", "complaint"), [("mine.py/r.json", "mine.py is a file"), (".", "must name a file, got the folder .")]
)
def test_an_out_that_cannot_be_written_is_an_error_before_the_work(run, tmp_path, model_file, out, complaint):
    model_file.write_text("raise RuntimeError('the work has begun')")
    ended = run("forge", f"{model_file}:build", *SMALL, "--out", out)
    assert ended.code == 2
    assert "--out" in ended.err
    assert complaint in ended.err


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write anywhere")
def test_an_out_in_a_folder_without_permission_is_an_error(run, tmp_path, model_file):
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o500)
    ended = run("forge", f"{model_file}:build", *SMALL, "--out", locked / "r.json")
    assert ended.code == 2
    assert "no permission to write in" in ended.err


def _damage(path, kind):
    torch.save(load_model("resnet20", pretrained=False).state_dict(), path)
    if kind == "truncated":
        path.write_bytes(path.read_bytes()[:1000])
    elif kind == "corrupt":
        content = bytearray(path.read_bytes())
        content[100:400] = b"\xff" * 300
        path.write_bytes(content)
    elif kind == "HTML":
        path.write_text("<!DOCTYPE html><html>Quota exceeded</html>")
    elif kind == "other architecture":
        torch.save(load_model("resnet32", pretrained=False).state_dict(), path)
    else:
        torch.save(load_model("resnet20", pretrained=False, classes=100).state_dict(), path)


@pytest.mark.parametrize(
    ("kind", "complaint"),
    [
        ("truncated", "cut short (1,000 bytes)"),
        ("corrupt", "cannot be read as a checkpoint"),
        ("HTML", "a web page, not a checkpoint"),
        ("other architecture", "does not fit the model"),
        ("other classes", "the checkpoint has 100 classes, the model 10"),
    ],
)
def test_a_bad_checkpoint_is_refused_in_one_line(run, tmp_path, kind, complaint):
    _damage(tmp_path / "w.pt", kind)
    ended = run("forge", "resnet20", "--weights", "w.pt", *SMALL)
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith("error: w.pt ")
    assert complaint in ended.err
    assert len(ended.err.splitlines()) == 1
    assert files(tmp_path) == {"w.pt"}


def test_a_hostile_pickle_is_refused_and_does_not_run(run, tmp_path):
    torch.save({"weight": _Hostile(tmp_path / "created")}, tmp_path / "w.pt")
    ended = run("forge", "resnet20", "--weights", "w.pt", *SMALL)
    assert ended.code == 2
    assert "error: w.pt was refused" in ended.err
    assert files(tmp_path) == {"w.pt"}


@pytest.mark.slow
def test_two_processes_give_the_bounds_of_one_and_only_the_first_prints(run, environment, tmp_path, model_file):
    # 33 images: the two shares are not equally long.
    arguments = [f"{model_file}:build", "--data", "cifar10-sample:train", "--limit", "33", "--json"]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*torchrun, "-m", "lipforge", "forge", *arguments, "--out", "two.json"]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr
    assert run("forge", *arguments, "--out", "one.json").code == 0
    assert load_recipe(tmp_path / "two.json") == load_recipe(tmp_path / "one.json")
    assert result_of(ended.stdout)["images_seen"] == 33


@pytest.mark.slow
def test_a_terminal_shows_a_bar_with_the_count_and_the_time_left(environment, model_file):
    pty = pytest.importorskip("pty", reason="POSIX terminals")
    slow = "time.sleep(0.5 if len(x) > 1 else 0)\n        x = F.relu(self.stem(x))"
    model_file.write_text("import time\n" + model_file.read_text().replace("x = F.relu(self.stem(x))", slow))
    command = [sys.executable, "-m", "lipforge", "forge", f"{model_file}:build", "--data", "cifar10-sample"]
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*command, "--batch-size", "50", "--json"], env=environment, stdout=subprocess.PIPE, stderr=theirs
    )
    os.close(theirs)
    shown = b""
    try:
        while part := os.read(ours, 4096):
            shown += part
    except OSError:  # the terminal's other end is closed: the command has ended
        pass
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert result_of(out.decode())["images_seen"] == 500
    assert b"calibrating" in shown
    assert b"500/500" in shown
    assert b"0:00:0" in shown
