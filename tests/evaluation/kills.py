"""Evaluate, being killed again and again: `python -m tests.evaluation.kills FOLDER`; prints how it went as JSON.

A process that has imported torch forks the ones that are killed, so that a kill costs milliseconds instead of seconds.
"""

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

from lipforge.attacks import APGD, Cascade, Square
from lipforge.evaluation import RobustResult, evaluate
from lipforge.runs import RunDir
from tests.evaluation.toys import THREAT, labelled, linear

KILLS = 24
ATTACK = Cascade((APGD(steps=4), Square(queries=4)))


def run(folder: Path) -> RobustResult:
    model = linear(classes=4)
    with RunDir.open(folder) as directory:
        return evaluate(
            model, labelled(model, 40), ATTACK, THREAT, run=directory, batch_size=4, save_images=True, show=False
        )


def killed(folder: Path, delay: float) -> bool:
    """Whether an evaluation was killed after `delay` seconds, rather than done."""
    child = os.fork()
    if child == 0:
        run(folder)
        os._exit(0)
    time.sleep(delay)
    os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


def main() -> None:
    folder, chance = Path(sys.argv[1]), random.Random(0)
    started = time.perf_counter()
    run(folder / "undisturbed")
    seconds = time.perf_counter() - started
    kills = rounds = 0
    left: list[int] = []
    while kills < KILLS:
        directory = folder / f"killed-{rounds}"
        for _ in range(8):
            kills += killed(directory, chance.uniform(0, seconds / 4))
            left.append(len(list(directory.glob("shards/*/0*.json"))))
        run(directory)
        rounds += 1
    print(json.dumps({"kills": kills, "rounds": rounds, "left": left, "seconds": seconds}))


if __name__ == "__main__":
    main()
