"""`improve` as one of the ranks of torchrun: writes what this rank got into the folder that is named."""

import sys
from pathlib import Path
from typing import Any

import torch

from lipforge.improvement import improve
from lipforge.ranks import process_group
from lipforge.records import write_json
from lipforge.results import record
from lipforge.runs import RunDir
from tests.improvement.lopsided import THREAT, Lopsided, symmetric


def found(folder: Path | None, rank: int = 0) -> dict[str, Any]:
    """The result as JSON; with a folder it is also the run directory, and keeps the recipe."""
    run = None if folder is None else RunDir.open(folder / "run")
    result = improve(
        Lopsided(), symmetric(240), THREAT, calibrate=110, validate=120, max_cost=2, parts=("tta", "head"), run=run,
        shard_size=30, show_progress=False,
    )  # fmt: skip
    if folder is not None and result.recipe is not None:
        result.recipe.save(folder / f"recipe-{rank}.json")
    return {key: value for key, value in record(result.record).items() if key != "images"}


if __name__ == "__main__":
    with process_group(torch.device("cpu")) as own:
        out = Path(sys.argv[1])
        write_json(out / f"rank-{own.index}.json", found(out, own.index))
