"""The short form of `tools/torture.py`: 25 kills of seven commands, and every fault once."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the harness reads /proc")
def test_twenty_five_kills_and_six_faults_lose_nothing():
    command = [sys.executable, "tools/torture.py", "--kills", "25", "--seed", "0", "--faults", "evaluate"]
    environment = {**os.environ, "PYTHONPATH": "src", "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=500)
    assert ended.returncode == 0, ended.stderr
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in ended.stdout.splitlines() if "|" in line][2:]
    assert sum(int(row[2]) for row in rows if row[0].endswith(", killed")) >= 25
    assert len(rows) == 7 + 6
