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
from tests.nets import ResidualNet, images, seeded


def found(folder: Path | None, rank: int = 0) -> dict[str, Any]:
    """The results as JSON; with a folder it has the run directories, and keeps the recipe."""
    run = None if folder is None else RunDir.open(folder / "run")
    result = improve(
        Lopsided(), symmetric(240), THREAT, calibrate=110, validate=120, max_cost=2, parts=("tta", "head"), run=run,
        shard_size=30, show_progress=False,
    )  # fmt: skip
    net, x = seeded(ResidualNet), images(24)
    forged = improve(
        net, (x, net(x).argmax(dim=1)), THREAT, calibrate=16, validate=8, parts=("forge",), shard_size=4,
        run=None if folder is None else RunDir.open(folder / "forged"), show_progress=False,
    )  # fmt: skip
    if folder is not None and result.recipe is not None:
        result.recipe.save(folder / f"recipe-{rank}.json")
    results = {"linear": record(result.record), "forged": record(forged.record)}
    return {name: {key: one for key, one in found.items() if key != "images"} for name, found in results.items()}


if __name__ == "__main__":
    with process_group(torch.device("cpu")) as own:
        out = Path(sys.argv[1])
        write_json(out / f"rank-{own.index}.json", found(out, own.index))
