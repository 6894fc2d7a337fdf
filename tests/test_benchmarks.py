"""benchmarks/autoattack.py on chosen images: what it measures, what it keeps, and what it refuses to overwrite."""

import json
import runpy
import sys
from pathlib import Path

import pytest
import torch

import lipforge as lf
import lipforge.allocator

SCRIPT = Path(__file__).parent.parent / "benchmarks" / "autoattack.py"
NATURAL = ("--model", "cifar10-resnet-natural", "--data", "cifar10-sample:test", "--threads", "1")


@pytest.fixture
def benchmark(monkeypatch):
    """Run the script in this process, on one thread as it is asked to, with the names it defines as the answer."""
    threads = torch.get_num_threads()

    def run(*options):
        monkeypatch.setattr(sys, "argv", [str(SCRIPT), *map(str, options)])
        return runpy.run_path(str(SCRIPT), run_name="__main__" if options else "autoattack")

    monkeypatch.setattr(lipforge.allocator, "keep_freed_memory", lambda: False)  # or it would last for later tests
    monkeypatch.syspath_prepend(SCRIPT.parent)  # as python does for a script that it runs
    yield run
    torch.set_num_threads(threads)


def test_chosen_images_are_measured_once_and_those_that_stay_robust_are_kept(benchmark, tmp_path, capsys):
    data, model = lf.load_data("cifar10-sample:test"), lf.load_model("cifar10-resnet-natural")
    images, labels = data.batch(range(40))
    with torch.no_grad():
        right = model(images).argmax(dim=1) == labels
    fooled, known = int((~right).nonzero()[0]), int(right.nonzero()[-1])
    options = (
        *NATURAL, "--attacks", "reference,apgd-t", "--at", f"{known},{fooled}", "--eps", "8/255",
        "--out", tmp_path / "chosen.json",
    )  # fmt: skip
    benchmark(*options)
    found = json.loads((tmp_path / "chosen.json").read_text())
    assert [key.split(" | ")[1] for key in found] == ["reference", "apgd-t"]
    for one in found.values():
        assert one["settings"]["at"] == [known, fooled]
        assert (one["clean"], one["robust"], one["robust_images"]) == (1, 0, [])
    assert "measuring" in capsys.readouterr().out
    benchmark(*options)
    assert "measuring" not in capsys.readouterr().out


def test_images_that_stay_robust_are_named(benchmark):
    survivors = benchmark()["survivors"]
    assert survivors(torch.tensor([False, True, True])) == {"robust": 2, "robust_images": [1, 2]}


@pytest.mark.parametrize("options", [NATURAL, ("--tta", "mirror"), ("--at", "1,2")], ids=["model", "tta", "at"])
def test_other_measurements_are_kept_out_of_the_file_of_the_table(benchmark, options):
    with pytest.raises(SystemExit, match=r"--model, --tta and --at need --out: autoattack\.json"):
        benchmark(*options)
