"""One rank of an evaluation under torchrun; the last rank is killed once: `torchrun ... -m tests.evaluation.ranks`."""

import os
import signal
import sys
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


def deadly(classifier: Classifier, passes: int) -> Classifier:
    """The same classifier, which kills its process at the last of so many passes."""
    left = [passes]

    def classify(images: Tensor) -> Tensor:
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return classifier(images)

    return classify


def main() -> None:
    folder = Path(sys.argv[1])
    model = linear(classes=4)
    data, rank = labelled(model, 40), int(os.environ["RANK"])
    doomed = rank == int(os.environ["WORLD_SIZE"]) - 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
    mortal = deadly(model, 30) if doomed else lambda images: model(images)
    mortal.__qualname__, mortal.__module__ = "linear", "tests"
    with process_group(torch.device("cpu")), RunDir.open(folder / "run") as run:
        kept = evaluate(mortal, data, ATTACK, THREAT, run=run, batch_size=4, show=False)
        in_memory = evaluate(mortal, data, ATTACK, THREAT, batch_size=4, show=False)
    write_json(folder / f"{rank}.json", {"kept": kept, "in_memory": in_memory})
    leave(0)


if __name__ == "__main__":
    main()
