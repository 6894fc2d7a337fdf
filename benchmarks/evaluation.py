"""What a run directory and progress cost, and what a second rank brings.

    python benchmarks/evaluation.py [--quick]

Overhead: `evaluate` into a run directory, with a progress bar and one thread. It is the time outside the attack plus
the processor time of the bar's thread, for which the attack may have to wait, relative to the time inside the attack.
Both come from the same run, because two runs differ by more than the target even on an idle machine. Ranks: the same
evaluation by `torchrun --nproc-per-node 2`, one thread each, against one process with one thread, without their start.
Needs an idle machine with two cores. The last line is JSON; it is also written to benchmarks/results/evaluation.json.
"""

import argparse
import contextlib
import io
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import nn

from lipforge.attacks import PGD, Attack, AttackResult
from lipforge.batching import ImageData
from lipforge.data import load_data
from lipforge.evaluation import evaluate
from lipforge.models import load_model
from lipforge.ranks import leave, process_group
from lipforge.records import write_json
from lipforge.runs import RunDir
from lipforge.types import Threat

RESULTS = Path(__file__).parent / "results" / "evaluation.json"
THREAT = Threat("linf", "8/255")
BATCH = 25
"""Images per shard for the ranks, so that there are enough to share; the overhead is that of the default size."""
TARGETS = {"overhead": 1.02, "two_ranks": 1.7}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer images and rounds: a rough look")
    parser.add_argument("--rank-of", help=argparse.SUPPRESS)
    parser.add_argument("--count", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.rank_of:
        rank(Path(options.rank_of), options.count)
        return
    count, rounds = (50, 3) if options.quick else (200, 7)
    results: dict[str, object] = {"overhead": overhead(count, rounds), "ranks": ranks(count, max(rounds // 2, 1))}
    results.update(count=count, batch=BATCH, attack="pgd:steps=20", torch=torch.__version__, cores=os.cpu_count())
    for name, row in (("overhead", results["overhead"]), ("two_ranks", results["ranks"])):
        print(f"{name}: {row} target {TARGETS[name]}")
    write_json(RESULTS, results)
    print(json.dumps(results))


class Clocked(PGD):
    """PGD that records how long it took."""

    seconds: ClassVar[list[float]] = []

    def run(self, *arguments: Any, **options: Any) -> AttackResult:
        """Run the attack and record the seconds."""
        began = time.perf_counter()
        result = super().run(*arguments, **options)
        self.seconds.append(time.perf_counter() - began)
        return result


def overhead(count: int, rounds: int) -> dict[str, float]:
    """Seconds of a whole evaluation over the seconds inside the attack."""
    model, data, attack = load_model("cifar10-resnet"), load_data("cifar10-sample", limit=count), Clocked(steps=20)
    ratios = []
    for _ in range(rounds):
        attack.seconds.clear()
        others = time.process_time() - time.thread_time()
        whole = timed(lambda: kept(model, data, attack))
        others = time.process_time() - time.thread_time() - others
        inside = sum(attack.seconds)
        ratios.append((whole + others) / inside)
    low, middle, high = statistics.quantiles(ratios, n=4)
    return {"ratio": round(middle, 4), "low": round(low, 4), "high": round(high, 4)}


class Terminal(io.StringIO):
    """A terminal in memory: without one the bar would not be drawn."""

    def isatty(self) -> bool:
        """It is one."""
        return True


def kept(model: nn.Module, data: ImageData, attack: Attack) -> None:
    """An evaluation into a new run directory, with its progress bar drawn."""
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(Terminal()), RunDir.open(folder) as run:
        evaluate(model, data, attack, THREAT, run=run, show_progress=True)


def ranks(count: int, rounds: int) -> dict[str, float]:
    """The speed of two ranks with one thread each, relative to one."""
    ratios = []
    for _ in range(rounds):
        one, two = started(1, count), started(2, count)
        ratios.append(one / two)
    return {"speedup": round(statistics.median(ratios), 3), "low": min(ratios), "high": max(ratios)}


def started(number: int, count: int) -> float:
    """The seconds that the slowest of `number` ranks worked."""
    with tempfile.TemporaryDirectory() as folder:
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(number)]
        command = [*torchrun, __file__, "--rank-of", folder, "--count", str(count)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        subprocess.run(command, check=True, env=environment, capture_output=True, timeout=1800)
        return max(float(path.read_text()) for path in Path(folder).glob("*.seconds"))


def rank(folder: Path, count: int) -> None:
    """One rank: load, wait for the other ranks, evaluate, and write how long it took."""
    model, data = load_model("cifar10-resnet"), load_data("cifar10-sample", limit=count)
    with process_group(torch.device("cpu")) as me, RunDir.open(folder / "run") as run:
        PGD(steps=1).run(model, *data.batch(range(BATCH)), threat=THREAT)
        seconds = timed(lambda: work(model, data, run))
    (folder / f"{me.index}.seconds").write_text(str(seconds))
    leave(0)


def work(model: nn.Module, data: ImageData, run: RunDir) -> None:
    """The evaluation that the ranks share."""
    evaluate(model, data, PGD(steps=20), THREAT, run=run, batch_size=BATCH, show_progress=False)


def timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
