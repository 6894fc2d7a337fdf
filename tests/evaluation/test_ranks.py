"""Any number of ranks, one of them killed, come to the same result as one process."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import lipforge
from lipforge.evaluation import evaluate
from lipforge.records import to_plain
from tests.evaluation.kills import ATTACK
from tests.evaluation.toys import THREAT, labelled, linear, untimed


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 2, 3])
def test_ranks_of_torchrun_get_the_result_of_one_process_even_if_one_is_killed(tmp_path, count):
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--max-restarts", "1"]
    command = [*torchrun, "--nproc-per-node", str(count), "-m", "tests.evaluation.ranks", str(tmp_path)]
    paths = f"{Path(lipforge.__file__).parents[1]}:{Path(__file__).parents[2]}"
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, done.stderr
    assert "SIGKILL" in done.stderr or "Signal 9" in done.stderr or "exitcode: -9" in done.stderr, done.stderr
    model = linear(classes=4)
    expected = to_plain(untimed(evaluate(model, labelled(model, 40), ATTACK, THREAT, batch_size=4)))
    for rank in range(count):
        found = json.loads((tmp_path / f"{rank}.json").read_text())
        assert without_times(found["kept"]) == expected
        assert without_times(found["in_memory"]) == expected


def without_times(result: dict) -> dict:
    return {**result, "seconds": 0.0, "stages": [{**stage, "seconds": 0.0} for stage in result["stages"]]}
