import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.py"))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_an_example_runs_as_it_stands(example, tmp_path):
    source = Path(__file__).parent.parent / "src"
    environment = {**os.environ, "PYTHONPATH": str(source), "PYTHONWARNINGS": "error"}
    subprocess.run([sys.executable, example], cwd=tmp_path, env=environment, check=True, timeout=300)


def test_the_own_model_example_is_short_and_saves_a_recipe(tmp_path):
    example = next(path for path in EXAMPLES if path.name == "02_own_model.py")
    assert sum(bool(line.strip()) for line in example.read_text().splitlines()) <= 15
    source = Path(__file__).parent.parent / "src"
    subprocess.run([sys.executable, example], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(source)}, check=True)
    recipe = json.loads((tmp_path / "recipe.json").read_text())
    assert list(recipe["sites"]) == ["conv1", "conv2"]
