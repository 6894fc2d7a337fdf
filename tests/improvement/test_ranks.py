"""Every rank of torchrun gets the answer of one process."""

import json
from pathlib import Path

import pytest

from lipforge.forge import load_recipe
from tests.improvement.ranks_program import found
from tests.torchrun import torchrun

PROGRAM = Path(__file__).with_name("ranks_program.py")


def untimed(value):
    """Without what depends on the clock."""
    if isinstance(value, dict):
        return {key: untimed(one) for key, one in value.items() if key not in ("seconds", "preparation")}
    return [untimed(one) for one in value] if isinstance(value, list) else value


@pytest.mark.slow
def test_ranks_agree_with_one_process(tmp_path):
    alone = found(None)
    code, errors = torchrun(2, str(PROGRAM), str(tmp_path))
    assert code == 0, errors
    ranks = [json.loads((tmp_path / f"rank-{index}.json").read_text()) for index in range(2)]
    assert [untimed(one) for one in ranks] == [untimed(alone)] * 2
    first, second = (load_recipe(tmp_path / f"recipe-{index}.json") for index in range(2))
    assert first == second
