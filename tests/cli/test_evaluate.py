"""`lipforge evaluate` as a user meets it."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import lipforge
from lipforge.attacks import FGSM, AutoAttack, Fast
from lipforge.data import load_data
from lipforge.evaluation import evaluate
from lipforge.models import load_model
from lipforge.results import RobustResult
from lipforge.types import Threat
from tests.schemas import problems, results_of

SAMPLE = ("--data", "cifar10-sample", "--limit", 24, "--batch-size", 8)


@pytest.fixture
def recipe(run, model_file) -> str:
    arguments = ("--data", "cifar10-sample:train", "--limit", 16, "--ratio", "2^-3", "--out", "recipe.json")
    assert run("forge", f"{model_file}:build", *arguments).code == 0
    return "recipe.json"


def test_json_is_the_result_that_the_api_gives_and_fits_the_schema(run):
    ended = run("evaluate", "cifar10-resnet", *SAMPLE, "--attack", "fgsm", "--json")
    (printed,) = results_of(ended.out)
    assert problems(printed, "robust") == []
    expected = evaluate(
        load_model("cifar10-resnet"),
        load_data("cifar10-sample", limit=24),
        FGSM(),
        Threat("linf", "8/255"),
        batch_size=8,
    )
    assert printed["outcome"] == list(expected.outcome)
    assert printed["count"] == 24
    assert (printed["clean_accuracy"], printed["robust_accuracy"]) == (
        expected.clean_accuracy,
        expected.robust_accuracy,
    )
    assert set(printed["outcome"]) == {"robust", "misclassified", "fgsm"}


def test_a_model_in_16_bit_has_rows_of_its_own_in_the_same_run(run, recipe, model_file):
    measured = ("evaluate", f"{model_file}:build", *SAMPLE, "--attack", "fgsm", "--recipe", recipe, "--run", "runs/x")
    assert run(*measured).code == 0
    ended = run(*measured, "--dtype", "bfloat16")
    assert ended.code == 0, ended.err
    assert "base bfloat16" in ended.out
    assert "fgsm: " in ended.out  # the paired comparison
    kept = results_of(run(*measured, "--dtype", "bfloat16", "--json").out)
    assert [(one["label"], one["dtype"]) for one in kept] == [
        ("base bfloat16", "bfloat16"),
        ("forged bfloat16", "bfloat16"),
    ]
    assert kept[1]["change"]["label"] == "forged"
    assert len(list(Path("runs/x/results").iterdir())) == 4


@pytest.mark.parametrize(
    "broken",
    [
        {"count": "24"},
        {"clean_accuracy": 1.5},
        {"interval": [0.1]},
        {"norm": "l0"},
        {"kind": "audit"},
        {"extra": 1},
        {"seed": True},
        {"outcome": None},
        {"stages": [{"attack": "fgsm"}]},
    ],
)
def test_the_schema_refuses_what_is_no_result(run, broken):
    ended = run("evaluate", "cifar10-resnet", *SAMPLE, "--limit", 2, "--attack", "fgsm", "--json")
    (whole,) = results_of(ended.out)
    assert problems(whole, "robust") == []
    assert problems({**whole, **broken}, "robust")
    assert problems({key: whole[key] for key in whole if key not in broken}, "robust") or "extra" in broken


def test_a_run_is_kept_resumed_and_refused_if_it_changes(run):
    arguments = ("evaluate", "cifar10-resnet", *SAMPLE, "--attack", "fgsm", "--run", "kept")
    first = run(*arguments)
    assert (first.code, first.err) == (0, "")
    assert "wrote kept/results" in first.out
    written = {path: path.stat().st_mtime_ns for path in Path("kept").rglob("0*.json")}
    assert len(written) == 3
    again = run(*arguments)
    assert again.out == first.out
    assert again.err == "note: kept has 3 finished shards; those of the same work are reused\n"
    assert {path: path.stat().st_mtime_ns for path in Path("kept").rglob("0*.json")} == written
    assert run(*arguments, "--data", "cifar10-sample:test").code == 0  # the same images by their other name
    assert {path: path.stat().st_mtime_ns for path in Path("kept").rglob("0*.json")} == written
    refused = run("evaluate", "cifar10-resnet", *SAMPLE, "--limit", 16, "--attack", "fgsm", "--run", "kept")
    assert refused.code == 2
    assert "count was 24, now 16" in refused.err
    kept = json.loads(Path("kept/environment.json").read_text())["environments"]
    assert kept[0]["command"].startswith("lipforge evaluate cifar10-resnet --data cifar10-sample")


def test_the_eps_of_linf_in_another_norm_is_pointed_out(run):
    arguments = ("evaluate", "cifar10-resnet", *SAMPLE, "--limit", 2, "--attack", "pgd:steps=1", "--norm", "l2")
    assert "eps 8/255 is usual in linf and tiny in l2; give --eps" in run(*arguments).err
    assert run(*arguments, "--eps", "0.5").err == ""


def test_views_of_a_forged_model_are_compared(run, model_file, recipe):
    ended = run(
        *("evaluate", f"{model_file}:build", *SAMPLE, "--recipe", recipe, "--ratio", "2^-4"),
        *("--attack", "fgsm", "--attack", "pgd:steps=2", "--eps", "1/255", "--run", "kept"),
    )
    assert ended.code == 0, ended.err
    assert [line.split()[1:4:2] for line in ended.out.splitlines() if re.match("│ (base|forged)", line)] == [
        ["base", "fgsm"],
        ["forged", "fgsm"],
        ["base", "pgd:steps=2"],
        ["forged", "pgd:steps=2"],
    ]
    assert len(re.findall("(fgsm|pgd:steps=2): .*n = 24", ended.out)) == 2
    assert re.search(r"forwards \+.*\n.* backwards ", ended.out)
    names = sorted(path.stem for path in Path("kept/results").iterdir())
    assert names == [
        "base__fgsm__linf-1over255",
        "base__pgd-steps=2__linf-1over255",
        "forged__fgsm__linf-1over255",
        "forged__pgd-steps=2__linf-1over255",
    ]


def test_a_model_changed_otherwise_is_labelled_by_its_parts_in_table_json_and_report(run, model_file, mirrored):
    given = ("evaluate", f"{model_file}:build", *SAMPLE, "--recipe", mirrored, "--attack", "fgsm", "--run", "kept")
    ended = run(*given)
    assert ended.code == 0, ended.err
    assert re.findall("│ (base|mirror|forged) ", ended.out) == ["base", "mirror"]
    assert re.search("fgsm: .*n = 24", ended.out)
    assert [one["label"] for one in json.loads(run(*given, "--json").out)["results"]] == ["base", "mirror"]
    assert sorted(path.stem.split("__")[0] for path in Path("kept/results").iterdir()) == ["base", "mirror"]
    assert run("report", "kept").code == 0
    page = Path("kept/report.html").read_text()
    assert "mirror, fgsm" in page
    assert "forged" not in page.partition("Provenance")[0].partition("<body")[2]


def test_all_transforms_are_one_pass_of_the_classifier():
    model, data = load_model("cifar10-resnet"), load_data("cifar10-sample", limit=1)
    threat = Threat("linf", "1/2550")
    before = evaluate(model, data, FGSM(), threat)
    lipforge.set_tta_(model, "mirror")
    after = evaluate(model, data, FGSM(), threat)
    assert before.outcome == after.outcome == ("robust",)
    assert (after.forwards, after.backwards) == (before.forwards, before.backwards)


@pytest.mark.parametrize(
    ("given", "attack"),
    [([], Fast()), (["--attack", "fast"], Fast()), (["--attack", "autoattack"], AutoAttack())],
    ids=["default", "fast", "autoattack"],
)
def test_the_default_is_fast_and_autoattack_is_autoattack(run, monkeypatch, given, attack):
    attacks = []
    evaluate = lipforge.evaluate

    def watch(classifier, data, attack, *rest, **named):
        attacks.append(attack)
        return evaluate(classifier, data, FGSM(), *rest, **named)

    monkeypatch.setattr(lipforge, "evaluate", watch)
    assert run("evaluate", "cifar10-resnet", *SAMPLE, "--limit", 2, *given).code == 0
    assert attacks == [attack]


def test_fast_is_never_called_autoattack(run):
    ended = run("evaluate", "cifar10-resnet", "--data", "cifar10-sample", "--limit", 2)
    assert " fast " in ended.out
    assert "autoattack" not in ended.out.lower()


SETTINGS = {"--attack": "fgsm", "--eps": "1/255", "--batch-size": "8", "--run": "kept"}


def evaluate_forged(spec: str, recipe: str) -> list[RobustResult]:
    """What the command line does with SETTINGS, in Python."""
    model = lipforge.load_model(spec)
    lipforge.load_recipe(recipe).apply_(model)
    lipforge.set_ratio_(model, 2**-4)
    data, threat = lipforge.load_data("cifar10-sample", limit=24), Threat("linf", "1/255")
    settings: dict[str, Any] = {"run": lipforge.RunDir.open("kept"), "batch_size": 8}
    views = {"base": lipforge.plain(model), "forged": lipforge.forged(model)}
    return [lipforge.evaluate(view, data, FGSM(), threat, label=label, **settings) for label, view in views.items()]


def shards() -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in Path("kept").rglob("shards/*/0*.json")}


@pytest.mark.parametrize("first", ["the command line", "Python"])
def test_the_command_line_and_python_resume_each_other(run, model_file, recipe, first):
    spec = f"{model_file}:build"
    options = [part for pair in SETTINGS.items() for part in pair]
    given = ("evaluate", spec, *SAMPLE, "--recipe", recipe, "--ratio", "2^-4", *options, "--json")
    calls = [lambda: run(*given), lambda: evaluate_forged(spec, recipe)]
    start, resume = calls if first == "the command line" else calls[::-1]
    start()
    written = shards()
    assert len(written) == 6
    resume()
    assert shards() == written
    printed = json.loads(run(*given).out)["results"]
    assert [one["outcome"] for one in printed] == [list(one.outcome) for one in evaluate_forged(spec, recipe)]


def test_images_are_kept_on_request(run):
    ended = run("evaluate", "cifar10-resnet", *SAMPLE, "--attack", "fgsm", "--run", "kept", "--save-images")
    assert ended.code == 0
    assert len(list(Path("kept").rglob("*.safetensors"))) == 3


def test_an_estimate_says_what_it_assumes(run):
    arguments = ("evaluate", "cifar10-resnet", *SAMPLE, "--attack", "pgd:steps=3", "--estimate", "--probe", 4)
    ended = run(*arguments, "--devices", 2)
    assert re.search(r"about .* of one device \[.* \.\. .*\], .* on 2 devices", ended.out)
    assert "assuming that" in ended.out
    (printed,) = json.loads(run(*arguments, "--json").out)["results"]
    assert (printed["kind"], printed["count"], printed["probe"]) == ("estimate", 24, 4)


WRONG = {
    "--view is about a forged model and needs --recipe": ("--view", "forged"),
    "--ratio changes the ratio of a recipe; give one with --recipe": ("--ratio", "2^-7"),
    "--view must be one of plain, forged, straight_through, got 'sideways'": (
        "--recipe",
        "r.json",
        "--view",
        "sideways",
    ),
    "attack must be one of": ("--attack", "hope"),
    "fast": ("--attack", "autoattack:version=fast"),
    "needs --run": ("--save-images",),
    "the interval must be one of": ("--interval", "wald", "--attack", "fgsm"),
    "norm must be one of": ("--norm", "l0"),
    "probe must be at least 2": ("--estimate", "--probe", 1),
}


@pytest.mark.parametrize("message", WRONG)
def test_wrong_use_is_explained_in_one_line(run, message):
    ended = run("evaluate", "cifar10-resnet", *SAMPLE, *WRONG[message])
    assert ended.code == 2
    assert message in ended.err
    assert len(ended.err.splitlines()) == 1


def test_log_writes_event_files_beside_the_result(run, tmp_path):
    ended = run("evaluate", "cifar10-resnet", *SAMPLE, "--limit", 2, "--attack", "fgsm", "--log", "tensorboard:tb")
    assert ended.code == 0, ended.err
    assert list((tmp_path / "tb").glob("events.out.tfevents.*"))
    refused = run("evaluate", "cifar10-resnet", *SAMPLE, "--limit", 2, "--log", "tensorboard")
    assert (refused.code, refused.err) == (2, "error: tensorboard needs a folder: tensorboard:DIR\n")


LIMITED = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(3072, 10)

    def forward(self, x):
        if len(x) > MOST:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return self.head(x.flatten(1))

def build():
    return Net()
"""


@pytest.fixture
def limited(tmp_path, monkeypatch) -> Callable[[int], str]:
    """A model that has memory for so many images at once, as the command line takes it."""
    monkeypatch.setattr(lipforge.memory, "_most", {})

    def write(most: int) -> str:
        (tmp_path / f"limited{most}.py").write_text(LIMITED.replace("MOST", str(most)))
        return f"limited{most}.py:build"

    return write


@pytest.mark.filterwarnings("default")
def test_a_batch_that_does_not_fit_into_memory_is_halved_with_one_note(run, limited):
    ended = run("evaluate", limited(2), *SAMPLE, "--attack", "fgsm")
    assert ended.code == 0
    assert ended.err.count("note: ") == 1
    assert "note: out of memory with batches of 8 images (CUDA out of memory." in ended.err


@pytest.mark.filterwarnings("default")
def test_too_little_memory_for_one_image_is_a_clear_error(run, limited):
    ended = run("evaluate", limited(0), "--data", "cifar10-sample", "--limit", 100, "--attack", "fgsm")
    assert ended.code == 2
    assert "error: out of memory even with one image at a time (CUDA out of memory." in ended.err
    assert "start anew" not in ended.err


def test_the_fastest_batch_size_is_measured_and_kept_in_the_run(run, model_file, tmp_path):
    images = ("--data", "cifar10-sample", "--limit", 40)
    command = ("evaluate", f"{model_file}:build", *images, "--attack", "fgsm", "--batch-size", "auto", "--run", "r")
    torch.manual_seed(0)
    first = run(*command)
    assert first.code == 0
    size = json.loads((tmp_path / "r" / "batch_size.json").read_text())["batch_size"]
    assert size in (32, 40)
    torch.manual_seed(0)
    (tmp_path / "r" / "batch_size.json").write_text(json.dumps({"batch_size": size}))
    assert run(*command).out == first.out


@pytest.mark.parametrize("value", ["0", "fast", "1.5"])
def test_a_batch_size_that_is_none_is_refused(run, value):
    ended = run("evaluate", "cifar10-resnet", *SAMPLE[:-2], "--batch-size", value)
    assert ended.code == 2
    assert f"batch_size must be auto or a whole number of at least 1, got '{value}'" in ended.err
