"""Any number of ranks, one of them killed, come to the same result as one process."""

import json

import pytest

from lipforge.evaluation import evaluate
from lipforge.records import to_builtins
from tests.evaluation.kills import ATTACK
from tests.evaluation.toys import THREAT, labelled, linear, untimed
from tests.search.test_choose import search
from tests.search.test_choose import untimed as untimed_search
from tests.torchrun import torchrun


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 2, 3])
def test_ranks_of_torchrun_get_the_result_of_one_process_even_if_one_is_killed(tmp_path, count):
    code, errors = torchrun(count, "-m", "tests.evaluation.ranks", str(tmp_path), restarts=1)
    assert code == 0, errors
    assert "SIGKILL" in errors or "Signal 9" in errors or "exitcode: -9" in errors, errors
    model = linear(classes=4)
    searched = to_builtins(untimed_search(search(recheck=0.3)))
    expected = to_builtins(untimed(evaluate(model, labelled(model, 40), ATTACK, THREAT, batch_size=4)))
    for rank in range(count):
        found = json.loads((tmp_path / f"{rank}.json").read_text())
        assert without_times(found["kept"]) == expected
        assert without_times(found["in_memory"]) == expected
        assert found["searched"] == searched


def without_times(result: dict) -> dict:
    """The result with no times, and the dtype of the model that the classifier, a function there, calls."""
    stages = [{**stage, "seconds": 0.0} for stage in result["stages"]]
    return {**result, "dtype": "float32", "seconds": 0.0, "stages": stages}
