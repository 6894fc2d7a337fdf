"""Evaluate, being killed again and again: `python -m tests.evaluation.kills FOLDER`; prints how it went as JSON.

A process that has imported torch forks the ones that are killed, so that a kill costs milliseconds instead of seconds.
A kill comes at a random one of the calls that Python makes, of its own functions or of the system's (a write, a
rename), not after a time: so it hits an evaluation under way on a machine of any speed, however busy.
"""

import json
import os
import random
import signal
import sys
from pathlib import Path

from lipforge.attacks import APGD, Cascade, Square
from lipforge.evaluation import evaluate
from lipforge.results import RobustResult
from lipforge.runs import RunDir
from tests.evaluation.toys import THREAT, labelled, linear

ROUNDS, TRIES = 3, 8
ATTACK = Cascade((APGD(steps=4), Square(queries=4)))


def run(folder: Path) -> RobustResult:
    model = linear(classes=4)
    with RunDir.open(folder) as directory:
        return evaluate(
            model,
            labelled(model, 40),
            ATTACK,
            THREAT,
            run=directory,
            batch_size=4,
            save_images=True,
            show_progress=False,
        )


def killed(folder: Path, calls: int) -> bool:
    """Whether an evaluation was killed at that call, rather than done before it."""
    child = os.fork()
    if child == 0:
        counted(folder, calls)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


def counted(folder: Path, deadly: int = -1) -> int:
    """How many calls an evaluation makes; it dies of the one with that number."""
    calls = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")
        if calls == deadly:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.setprofile(count)
    run(folder)
    sys.setprofile(None)
    return calls


def main() -> None:
    folder, chance = Path(sys.argv[1]), random.Random(0)
    run(folder / "undisturbed")
    calls = counted(folder / "counted")
    kills = 0
    left: list[int] = []
    for number in range(ROUNDS):
        directory = folder / f"killed-{number}"
        for _ in range(TRIES):
            kills += killed(directory, chance.randint(1, calls // 4))
            left.append(len(list(directory.glob("shards/*/0*.json"))))
        run(directory)
    print(json.dumps({"kills": kills, "rounds": ROUNDS, "left": left, "calls": calls}))


if __name__ == "__main__":
    main()
