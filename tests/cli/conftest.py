"""The command line as a user meets it: in this process where speed matters, in its own where the process does."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from lipforge import load_model, save_recipe, set_tta_
from lipforge.cli import output
from lipforge.cli.main import main

ANSI = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")
SOURCE = Path(__file__).parent.parent.parent / "src"

MODEL = """
import torch.nn.functional as F
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 3, padding=1)
        self.conv1 = nn.Conv2d(6, 6, 3, padding=1)
        self.conv2 = nn.Conv2d(6, 6, 3, padding=1)
        self.head = nn.Linear(6, 10)

    def forward(self, x):
        x = F.relu(self.stem(x))
        x = x + self.conv2(F.relu(self.conv1(x)))
        return self.head(x.mean(dim=(2, 3)))

def build():
    return Net()
"""


@dataclass(frozen=True)
class Ended:
    """How a command ended, without colours."""

    code: int
    out: str
    err: str


Run = Callable[..., Ended]


@pytest.fixture(autouse=True)
def _own_world(tmp_path, monkeypatch):
    """A working folder and a cache of its own, and a wide terminal, so that no line is folded."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LIPFORGE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "200")
    for console in (output.results, output.notes):
        # A console reads COLUMNS when it is made, which may have been before.
        monkeypatch.setattr(console, "_width", 200)
    for name in ("LIPFORGE_DATA", "RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def run(monkeypatch, capsys) -> Run:
    """Run `lipforge ARGUMENTS` in this process."""

    def run(*arguments: object) -> Ended:
        monkeypatch.setattr(sys, "argv", ["lipforge", *map(str, arguments)])
        capsys.readouterr()
        code = 0
        try:
            main()
        except SystemExit as request:
            code = request.code or 0  # type: ignore[assignment]  # the command line exits with numbers only
        out, err = (ANSI.sub("", text) for text in capsys.readouterr())
        return Ended(code, out, err)

    return run


@pytest.fixture
def environment() -> dict[str, str]:
    """The variables of a process of its own: this source tree, one thread, warnings as they come."""
    return {**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"}


@pytest.fixture
def run_process(environment) -> Run:
    """Run `python -m lipforge ARGUMENTS` in a process of its own."""

    def run(*arguments: object) -> Ended:
        command = [sys.executable, "-m", "lipforge", *map(str, arguments)]
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
        return Ended(ended.returncode, ended.stdout, ended.stderr)

    return run


@pytest.fixture
def model_file(tmp_path) -> Path:
    """A user's model in a file: one residual block with two convs."""
    path = tmp_path / "mine.py"
    path.write_text(MODEL)
    return path


@pytest.fixture
def mirrored(model_file) -> str:
    """A recipe that has TTA and no forged functions."""
    model = load_model(f"{model_file}:build")
    set_tta_(model, "mirror")
    save_recipe("mirror.json", model)
    return "mirror.json"
