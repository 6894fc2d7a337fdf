"""Real `lipforge` commands on a network of a few hundred weights, each run in a fork of a process that has imported
torch: what torture.py, compare_runs.py and soak.py share."""

import io
import json
import os
import shlex
import signal
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.update(OMP_NUM_THREADS="1", COLUMNS="200")

import numpy as np
import scipy.optimize
import torch
import torch._dynamo
import torch.distributed
from safetensors.torch import load_file

import lipforge as lf
from lipforge.cli.main import main

LOADED = (scipy.optimize, torch._dynamo, torch.distributed)  # imported once here instead of in every fork
BUG = 70  # the exit code of an unexpected error

NET = """
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 3, padding=1)
        self.conv1, self.conv2 = (nn.Conv2d(6, 6, 3, padding=1) for _ in range(2))
        self.head = nn.Linear(6 * 64, 4)

    def forward(self, x):
        x = self.stem(x).relu()
        x = x + self.conv2(self.conv1(x).relu())
        return 30 * self.head((x - x.mean(dim=(2, 3), keepdim=True)).flatten(1))
"""

_MODEL = "../net.py:Net --data npz:../images.npz"
_FORGED = f"{_MODEL} --recipe ../recipe.json --run ."
COMMANDS = {
    "evaluate": f"evaluate {_FORGED} --limit 8 --shard-size 2 --attack apgd:steps=5 --eps 2/255 --save-images",
    "search": f"search {_FORGED} --limit 16 --shard-size 4 --attack pgd:steps=4 --eps 2/255 --ratios 2^-8,2^-6 "
    "--metric non-adaptive --out chosen.json",
    "audit": f"audit {_FORGED} --limit 4 --shard-size 2 --eps 8/255",
    "certify": f"certify {_FORGED} --limit 12 --n0 10 --n 200 --batch-size 512",
    "improve": f"improve {_MODEL} --calibrate 8 --validate 6 --parts tta,head --tta mirror --eps 2/255 "
    "--shard-size 2 --run .",
    "train": f"train --arch {_MODEL} --epochs 2 --batch-size 16 --holdout 8 --checkpoint-seconds 0 --out .",
    "curve": f"curve {_FORGED} --limit 4 --shard-size 2 --attack fmn:steps=10",
}
"""Each command writes into the folder that it runs in, whose parent has the model, the images and the recipe."""


@dataclass(frozen=True)
class Ended:
    """How a command ended: its exit code (negative: the signal), what it said, and how long it took."""

    code: int
    said: str
    seconds: float

    @property
    def is_bug(self) -> bool:
        return self.code == BUG or "Traceback" in self.said


def prepare(folder: Path) -> None:
    """Put the model, 64 images that it labels itself, and a recipe into `folder`."""
    torch.set_num_threads(1)
    folder.mkdir(parents=True, exist_ok=True)
    os.environ["LIPFORGE_CACHE"] = str(folder / "cache")
    (folder / "net.py").write_text(NET)
    model = lf.load_model(f"{folder / 'net.py'}:Net")
    images = np.random.default_rng(0).integers(0, 256, (64, 3, 8, 8), dtype=np.uint8)
    pixels = torch.from_numpy(images) / 255
    with torch.no_grad():
        labels = model(pixels).argmax(dim=1)
    np.savez(folder / "images.npz", images=images, labels=labels.numpy())
    # By the command line, and here: its imports then need not happen again in every fork.
    sys.argv = ["lipforge", *f"forge {_MODEL} --limit 32 --out ../recipe.json --quiet".split()]
    before, inside = Path.cwd(), folder / "forge"
    inside.mkdir()
    os.chdir(inside)
    with redirect_stdout(io.StringIO()), suppress(SystemExit):
        main()
    os.chdir(before)


def start(command: str, folder: Path, before: Callable[[], object] = lambda: None) -> int:
    """The process id of a fork that runs `lipforge COMMAND` in `folder`, after calling `before`."""
    folder.mkdir(parents=True, exist_ok=True)
    if child := os.fork():
        return child
    code = BUG
    try:
        os.chdir(folder)
        said = os.open(folder.parent / f"said-{os.getpid()}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(said, 1)
        os.dup2(said, 2)
        sys.argv = ["lipforge", *shlex.split(command), "--quiet"]
        before()
        main()
    except SystemExit as request:
        code = request.code if isinstance(request.code, int) else 0
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    os._exit(code)


def finish(child: int, folder: Path, *, seconds: float = 120.0, kill_after: float | None = None) -> Ended:
    """How a started command ended; one that hangs, or is to be killed, is killed."""
    started = time.monotonic()
    limit = seconds if kill_after is None else kill_after
    while not (done := os.waitpid(child, os.WNOHANG))[0]:
        if time.monotonic() - started > limit:
            os.kill(child, signal.SIGKILL)
            done = os.waitpid(child, 0)
            break
        time.sleep(0.001)
    said = folder.parent / f"said-{child}"
    text = said.read_text(errors="replace") if said.exists() else ""
    said.unlink(missing_ok=True)
    return Ended(os.waitstatus_to_exitcode(done[1]), text, time.monotonic() - started)


def run(command: str, folder: Path, before: Callable[[], object] = lambda: None, **more: Any) -> Ended:
    """`start` and `finish`."""
    return finish(start(command, folder, before), folder, **more)


def facts(folder: Path) -> dict[str, Any]:
    """All that the files of a run directory say, without times and without what a session notes of its machine."""
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.suffix == ".json" and path.name != "environment.json" and not path.name.startswith("."):
            try:
                found[name] = _timeless(json.loads(path.read_bytes()))
            except ValueError:
                found[name] = "damaged"
        elif path.suffix == ".jsonl":
            found[name] = [_timeless(json.loads(line)) for line in path.read_text().splitlines()]
        elif path.suffix == ".safetensors":
            found[name] = {key: value.numpy().tobytes() for key, value in load_file(path).items()}
    return found


def _timeless(value: Any) -> Any:
    """JSON without seconds, and without the checksums of shards, which are over their seconds too."""
    if isinstance(value, dict):
        kept = {key: part for key, part in value.items() if not key.endswith("seconds")}
        if {"task", "sha256", "result"} <= kept.keys():
            del kept["sha256"]
        return {key: _timeless(part) for key, part in kept.items()}
    return [_timeless(part) for part in value] if isinstance(value, list) else value


def table(columns: list[str], rows: list[list[object]]) -> str:
    """Rows as a Markdown table."""
    text = io.StringIO()
    with redirect_stdout(text):
        for row in (columns, ["---"] * len(columns), *rows):
            print("|", " | ".join(map(str, row)), "|")
    return text.getvalue()
