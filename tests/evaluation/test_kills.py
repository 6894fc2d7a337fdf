"""An evaluation that is killed at random moments ends in exactly the result of one that was not."""

import json
import os
import subprocess
import sys
from pathlib import Path

from safetensors.torch import load_file

import lipforge

ROOT = Path(__file__).parents[2]


def content(directory: Path) -> dict:
    """The result without its times, and the adversarial images."""
    (path,) = directory.glob("results/*.json")
    result = json.loads(path.read_text())
    for timed in (result, *result["stages"]):
        assert timed.pop("seconds") > 0
    images = {file.name: load_file(file)["images"].tolist() for file in directory.glob("shards/*/*.safetensors")}
    return {"result": result, "images": images}


def test_twenty_kills_do_not_change_a_result(tmp_path):
    paths = f"{Path(lipforge.__file__).parents[1]}:{ROOT}"
    command = [sys.executable, "-m", "tests.evaluation.kills", str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["kills"] >= 20
    assert any(0 < shards < 10 for shards in report["left"]), "kills hit evaluations that were under way"
    expected = content(tmp_path / "undisturbed")
    assert len(expected["images"]) == 10
    for number in range(report["rounds"]):
        directory = tmp_path / f"killed-{number}"
        assert content(directory) == expected
        assert not list(directory.rglob(".0*.part"))
