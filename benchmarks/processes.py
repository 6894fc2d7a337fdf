"""What --processes brings on a CPU: the same command in one process with all threads, with one, and in several.

    python benchmarks/processes.py [--images 160] [--rounds 3] [--command audit|evaluate]

Every round runs `lipforge audit cifar10-resnet` with the mirror image (or `lipforge evaluate`) in a new run directory,
one form after the other, in shards of 20 images. Seconds on the clock, of a whole command with its start; CPU seconds
are those of all processes. Needs an idle machine. The last line is JSON, also in benchmarks/results/processes.json.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import lipforge as lf
from lipforge.cli.processes import cores
from lipforge.records import read_json, write_json

RESULTS = Path(__file__).parent / "results" / "processes.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=160)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--command", choices=("audit", "evaluate"), default="audit")
    options = parser.parse_args()
    count = cores()
    forms = {
        f"1 process, {count} threads": (count, 1),
        "1 process, 1 thread": (1, 1),
        f"{count} processes, 1 thread each": (count, count),
    }
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in forms}
    for number in range(options.rounds):
        for name in (list(forms) * 2)[number % len(forms) :][: len(forms)]:  # another one first in every round
            threads, processes = forms[name]
            found[name].append(timed(options.command, options.images, threads, processes))
            print(f"round {number}, {name}: {found[name][-1][0]:.1f} s, {found[name][-1][1]:.1f} s of CPU", flush=True)
    seconds = {name: [round(wall, 1) for wall, _ in times] for name, times in found.items()}
    first, *_, last = seconds.values()
    gains = sorted(a / b for a, b in zip(first, last, strict=True))
    measured = {
        "images": options.images,
        "cores": count,
        "seconds": seconds,
        "cpu_seconds": {name: [round(cpu, 1) for _, cpu in times] for name, times in found.items()},
        "gain": [round(statistics.median(gains), 2), round(gains[0], 2), round(gains[-1], 2)],
        "measured": time.strftime("%Y-%m-%d %H:%M"),
    }
    write_json(RESULTS, {**(read_json(RESULTS) if RESULTS.exists() else {}), options.command: measured})
    print(json.dumps(measured))


def timed(command: str, images: int, threads: int, processes: int) -> tuple[float, float]:
    """Seconds on the clock and of CPU time that the command takes in a new run directory."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = [command, "cifar10-resnet", "--data", "cifar10:test", "--limit", str(images), "--shard-size", "20"]
        if command == "audit":
            model = lf.load_model("cifar10-resnet")
            lf.set_tta_(model, "mirror")
            lf.save_recipe(Path(folder) / "mirror.json", model)
            arguments += ["--recipe", str(Path(folder) / "mirror.json")]
        arguments += ["--run", str(Path(folder) / "run"), "--processes", str(processes), "--json"]
        before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        ended = subprocess.run(
            [sys.executable, "-m", "lipforge", *arguments],
            env={**os.environ, "OMP_NUM_THREADS": str(threads)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=False,
        )
        assert ended.returncode in (0, 1, 3, 4), ended.returncode  # a verdict has an exit code
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return time.perf_counter() - began, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    main()
