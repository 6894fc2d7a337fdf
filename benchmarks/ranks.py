"""Whether many ranks wait for the store or the run directory: shards that sleep instead of attacking a model.

    python benchmarks/ranks.py [--seconds 5] [--shards 5] [--ranks 1 8 64]

Each rank is a process of its own, forked after the imports, that joins by gloo and works through the code that
`evaluate` uses: it draws shards from a counter in the store, locks, writes and reads them, in a run directory and in
memory. A shard sleeps for --seconds and gives the outcomes of 100 images; there are --shards for each rank, so that the
ideal time is the same for any number of ranks. The time between two shards of a rank is what the store and the run
directory take. Processor time is shown beside it: 64 ranks of this benchmark share the cores of one machine, while
ranks with a device each bring their own. The last line is JSON; it is also written to benchmarks/results/ranks.json.
"""

import argparse
import json
import os
import socket
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from lipforge.ranks import leave, process_group
from lipforge.records import read_json, write_json
from lipforge.runs import RunDir, open_task, work

RESULTS = Path(__file__).parent / "results" / "ranks.json"
IMAGES = 100  # in a shard
OUTCOMES = ["robust", "apgd:loss=dlr", "misclassified", "square"] * (IMAGES // 4)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=5.0, help="how long a shard sleeps")
    parser.add_argument("--shards", type=int, default=5, help="shards for each rank")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 8, 64])
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = [
        measured(count, options.shards, options.seconds, on_disk)
        for on_disk in (True, False)
        for count in options.ranks
    ]
    results = {"seconds": options.seconds, "shards": options.shards, "rows": rows}
    results |= {"cores": os.cpu_count(), "torch": torch.__version__}
    write_json(RESULTS, results)
    print(json.dumps(results))


def measured(count: int, shards: int, seconds: float, on_disk: bool) -> dict[str, Any]:
    """What `count` ranks took between their shards, and how close they came to the ideal time."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {"WORLD_SIZE": str(count), "MASTER_ADDR": "localhost", "MASTER_PORT": str(free_port())}
        children = [
            started({**environment, "RANK": str(index)}, shards * count, seconds, Path(folder), on_disk)
            for index in range(count)
        ]
        failed = [child for child in children if os.waitpid(child, 0)[1] != 0]
        if failed:
            sys.exit(f"{len(failed)} of {count} ranks failed")
        ranks = [read_json(Path(folder) / f"{index}.json") for index in range(count)]
    gaps = sorted(gap for rank in ranks for gap in rank["gaps"])
    ideal = shards * seconds
    row = {
        "ranks": count,
        "where": "run directory" if on_disk else "memory",
        "shards": shards * count,
        "gap_median": statistics.median(gaps),
        "gap_95": gaps[int(0.95 * (len(gaps) - 1))],
        "cpu_per_shard": sum(rank["cpu"] for rank in ranks) / (shards * count),
        "seconds": max(rank["seconds"] for rank in ranks),
        "efficiency": ideal / max(rank["seconds"] for rank in ranks),
    }
    print(
        f"{row['where']:13s} {count:3d} ranks {row['shards']:4d} shards: {1e3 * row['gap_median']:6.1f} ms between two "
        f"shards (95 %: {1e3 * row['gap_95']:.1f}), {1e3 * row['cpu_per_shard']:.1f} ms of CPU per shard; "
        f"{row['seconds']:.2f} s, ideal {ideal:g}: efficiency {100 * row['efficiency']:.1f} %",
        flush=True,
    )
    return row


def started(environment: Mapping[str, str], shards: int, seconds: float, folder: Path, on_disk: bool) -> int:
    """Fork a rank; gives its process."""
    child = os.fork()
    if child == 0:
        try:
            os.environ.update(environment)
            rank(shards, seconds, folder, on_disk)
            leave(0)
        except Exception:
            traceback.print_exc()
            leave(1)
    return child


def rank(shards: int, seconds: float, folder: Path, on_disk: bool) -> None:
    """Work on shards that sleep, and write how long each had to wait for the one before."""
    gaps, last = list[float](), 0.0

    def compute(images: range) -> Mapping[str, Any]:
        nonlocal last
        gaps.append(time.perf_counter() - last)
        time.sleep(seconds)
        last = time.perf_counter()
        return {"outcome": OUTCOMES[: len(images)], "correct": 75, "forwards": 17000, "backwards": 9000, "notes": []}

    with process_group(torch.device("cpu")) as me:
        run = RunDir.open(folder / "run") if on_disk else None
        task = open_task(run, "sleep", {"seconds": seconds}, shards * IMAGES, IMAGES)
        if me.count > 1:
            torch.distributed.barrier()  # joining is not measured
        began, cpu = time.perf_counter(), time.process_time()
        last = began
        assert len(work(task, compute, "sleeping", show_progress=False)) == shards
        took, cpu = time.perf_counter() - began, time.process_time() - cpu
    write_json(folder / f"{me.index}.json", {"gaps": gaps, "seconds": took, "cpu": cpu})


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        return int(free.getsockname()[1])


if __name__ == "__main__":
    main()
