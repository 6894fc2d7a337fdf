"""torchrun as a user starts it, on a port that the system picks; what it started ends with the test."""

import os
import subprocess
import sys
from pathlib import Path

import lipforge

PATHS = f"{Path(lipforge.__file__).parents[1]}:{Path(__file__).parents[1]}"
"""Where a process of its own finds the package and the tests."""


def torchrun(count: int, *arguments: str, restarts: int = 0) -> tuple[int, str]:
    """The exit code and stderr of `torchrun --nproc-per-node COUNT ARGUMENTS`."""
    options = ["--standalone", "--max-restarts", str(restarts), "--nproc-per-node", str(count)]
    command = [sys.executable, "-m", "torch.distributed.run", *options, *arguments]
    environment = {**os.environ, "PYTHONPATH": PATHS, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        try:
            errors = process.communicate(timeout=240)[1]
        finally:
            process.terminate()  # torchrun then ends its ranks; a kill would leave them behind
    return process.returncode, errors
