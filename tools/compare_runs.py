"""One evaluation by 1, 2 and 3 ranks, in several batch sizes, by 1 and 2 threads, resumed and not, image by image:
python tools/compare_runs.py [OTHER_PYTHON ...]"""

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tiny import facts, prepare, run, table

COMMAND = "evaluate ../net.py:Net --data npz:../images.npz --recipe ../recipe.json --run . --limit 24 --shard-size 6 "
COMMAND += "--attack fast --eps 2/255"


@dataclass(frozen=True)
class Way:
    """One way to come to the same numbers; `batch_size` is part of a run's identity, so its files differ there."""

    name: str
    ranks: int = 1
    threads: int = 1
    batch_size: int = 6
    python: str = sys.executable
    interrupted: bool = False


WAYS = [
    Way("1 process"),
    Way("2 ranks", ranks=2),
    Way("3 ranks", ranks=3),
    Way("2 threads", threads=2),
    Way("interrupted three times", interrupted=True),
    *(Way(f"batch size {size}", batch_size=size) for size in (1, 4, 24)),
]


def measure(way: Way, folder: Path) -> list[dict[str, Any]]:
    """The results of both models, by label."""
    folder.mkdir()
    command = f"{COMMAND} --batch-size {way.batch_size}"
    for seconds in (0.4, 0.7, 1.0) if way.interrupted else ():
        run(command, folder, kill_after=seconds)
    program = [way.python, "-m", "lipforge"]
    if way.ranks > 1:
        started = ["torch.distributed.run", "--standalone", "--nproc-per-node", str(way.ranks), "-m", "--"]
        program = [way.python, "-m", *started, "lipforge"]
    environment = {**os.environ, "OMP_NUM_THREADS": str(way.threads)}
    done = subprocess.run([*program, *command.split(), "--quiet"], cwd=folder, env=environment, capture_output=True)
    if done.returncode not in (0, 4):
        raise SystemExit(f"{way.name}: {done.stderr.decode()}")
    found = [value for name, value in facts(folder).items() if name.startswith("results/")]
    return sorted((one for one in found if one["kind"] == "robust"), key=lambda one: one["label"])


def compared(way: Way, found: list[dict[str, Any]], expected: list[dict[str, Any]]) -> list[object]:
    """A row: images whose outcome differs, and whether everything else in the results is the same too."""
    outcomes = [[outcome for one in results for outcome in one["outcome"]] for results in (found, expected)]
    changed = sum(one != other for one, other in zip(*outcomes, strict=True))
    robust = ", ".join(f"{one['label']} {sum(outcome == 'robust' for outcome in one['outcome'])}" for one in found)
    same = json.dumps(found, sort_keys=True) == json.dumps(expected, sort_keys=True)
    return [way.name, robust, changed, "equal" if same else "differ"]


def main() -> int:
    ways = [*WAYS, *(Way(f"python {path}", python=path) for path in sys.argv[1:])]
    with tempfile.TemporaryDirectory() as folder:
        world = Path(folder).resolve()
        prepare(world)
        results = [measure(way, world / f"way-{place}") for place, way in enumerate(ways)]
    rows = [compared(way, found, results[0]) for way, found in zip(ways, results, strict=True)]
    print(table(["way", "robust of 24", "other outcomes", "results, times apart"], rows))
    return int(any(row[2] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
