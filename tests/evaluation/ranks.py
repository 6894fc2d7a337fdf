"""One rank of an evaluation under torchrun: `torchrun ... -m tests.evaluation.ranks`.

In their first life the last rank is killed in the middle of its work, and the others stop before they have done it all.
"""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from lipforge.evaluation import evaluate
from lipforge.ranks import leave, process_group
from lipforge.records import write_json
from lipforge.runs import RunDir
from lipforge.types import Classifier
from tests.evaluation.kills import ATTACK
from tests.evaluation.toys import THREAT, labelled, linear
from tests.search.test_choose import search
from tests.search.test_choose import untimed as untimed_search


def ending(classifier: Classifier, passes: int, end: Callable[[], None]) -> Classifier:
    """The same classifier, which calls `end` at the last of so many passes."""
    left = [passes]

    def classify(images: Tensor) -> Tensor:
        left[0] -= 1
        if left[0] == 0:
            end()
        return classifier(images)

    return classify


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    folder = Path(sys.argv[1])
    model = linear(classes=4)
    data, rank = labelled(model, 40), int(os.environ["RANK"])
    is_last, first_life = rank == int(os.environ["WORLD_SIZE"]) - 1, os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
    # A shard takes some ten passes and there are ten: the last rank gets to its third, while the others wait for ever
    # in their second, until torchrun ends them.
    passes, end = (30, die) if is_last else (15, signal.pause)
    mortal = ending(model, passes if first_life else -1, end)
    with process_group(torch.device("cpu")), RunDir.open(folder / "run") as run:
        kept = evaluate(
            mortal, data, ATTACK, THREAT, run=run, batch_size=4, identity={"model": "linear"}, show_progress=False
        )
        in_memory = evaluate(mortal, data, ATTACK, THREAT, batch_size=4, show_progress=False)
        searched = search(run=run, recheck=0.3)
    write_json(folder / f"{rank}.json", {"kept": kept, "in_memory": in_memory, "searched": untimed_search(searched)})
    leave(0)


if __name__ == "__main__":
    main()
