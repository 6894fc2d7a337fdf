"""Audit in a loop in one process, and record its memory and open files: python tools/soak.py --minutes 120"""

import argparse
import io
import os
import resource
import shlex
import shutil
import sys
import tempfile
import time
from contextlib import redirect_stdout
from pathlib import Path

import numpy as np
from tiny import COMMANDS, main, prepare, table


def audit(folder: Path) -> None:
    """One audit by the command line, in this process and in a new run directory."""
    folder.mkdir()
    os.chdir(folder)
    sys.argv = ["lipforge", *shlex.split(COMMANDS["audit"]), "--quiet"]
    try:
        with redirect_stdout(io.StringIO()):
            main()
    except SystemExit as end:
        if end.code not in (0, 1, 3, 4):  # a verdict
            raise
    os.chdir(folder.parent)
    shutil.rmtree(folder)


def used() -> tuple[float, int]:
    """Megabytes in memory, and open files."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / (1 << 20), len(os.listdir("/proc/self/fd"))


def run() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=120.0)
    parser.add_argument("--rows", type=int, default=12, help="rows of the table")
    given = parser.parse_args()
    started, samples = time.monotonic(), []
    with tempfile.TemporaryDirectory() as folder:
        world = Path(folder).resolve()
        prepare(world)
        while (minutes := (time.monotonic() - started) / 60) < given.minutes:
            audit(world / "run")
            samples.append((minutes, len(samples) + 1, *used()))
        os.chdir("/")
    picked = [samples[place] for place in np.linspace(0, len(samples) - 1, given.rows).astype(int)]
    print(
        table(
            ["minutes", "audits", "MB in memory", "open files"],
            [[f"{m:.1f}", n, f"{r:.1f}", f] for m, n, r, f in picked],
        )
    )
    later = np.array(samples[len(samples) // 4 :])
    slope = np.polyfit(later[:, 1], later[:, 2], 1)[0] * 1000
    print(
        f"{len(samples)} audits in {minutes:.1f} minutes; after the first quarter {slope:+.1f} kB per audit", end=", "
    )
    print(f"open files {int(later[:, 3].min())} to {int(later[:, 3].max())}")


if __name__ == "__main__":
    run()
