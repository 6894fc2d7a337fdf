"""How often an audit's verdict is wrong: simulated audits of which the truth is known, through the audit's own rule.

    python benchmarks/verdicts.py [--audits 10000] [--restarts 1000]

Each truth says which shares of all images the candidate gains and loses under the union of all attacks, and which share
it gains under the non-adaptive attack only. The documented ways of use are simulated on up to 10,000 images: an audit
that looks after every 500 images and stops at the first verdict; and one of 500 images that, as long as it is
undecided, starts again with the number of images that its sentence names. The last line is JSON.
"""

import argparse
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lipforge.auditing.verdict import BLOCK, images_needed, verdict_of
from lipforge.results import VERDICTS
from lipforge.statistics import anytime_limits, paired

MARGIN = 0.01
MOST = 10_000  # images of an audit
STEP = 100  # images between which nobody looks: the suggested numbers are hundreds
STUB = paired([True], [True], anytime=True)


class Seen(NamedTuple):
    """What the rule takes from a comparison."""

    gained: int
    lost: int
    count: int
    difference: float
    interval: tuple[float, float]


class Truth(NamedTuple):
    """Shares of all images, in percent: gained and lost under the union, gained under the non-adaptive attack only."""

    name: str
    gained: float
    lost: float
    hidden: float = 0.0

    @property
    def difference(self) -> float:
        return round(self.gained - self.lost, 6) / 100


TRUTHS = (
    Truth("no effect, 2 % differ", 1, 1),
    Truth("no effect, 6 % differ", 3, 3),
    Truth("no effect, 10 % differ", 5, 5),
    Truth("+0.3", 0.45, 0.15),
    Truth("+0.5", 0.75, 0.25),
    Truth("+1", 1.5, 0.5),
    Truth("+2", 3, 1),
    Truth("+4", 6, 2),
    Truth("0, non-adaptive +2", 1, 1, 2),
    Truth("+1, non-adaptive +1.5", 1.5, 0.5, 0.5),
    Truth("-1", 0.5, 1.5),
    Truth("-2", 1, 3),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--audits", type=int, default=10_000, help="simulated audits of each truth")
    parser.add_argument("--restarts", type=int, default=1_000, help="of them also with new starts while undecided")
    options = parser.parse_args()
    rows = []
    print(f"| truth, in points | way of use | {' | '.join(words())} | images, median |\n{'|---' * (3 + len(words()))}|")
    for truth in TRUTHS:
        found = simulated(truth, options.audits)
        ways = {"looking": looking(found), "restarting": looking(found[: options.restarts], first=BLOCK)}
        for way, ended in ways.items():
            rates, images = rates_of(ended), int(np.median([count for _, count in ended]))
            cells = " | ".join(f"{100 * rates[word]:.1f}" for word in words())
            print(f"| {truth.name} | {way} | {cells} | {images:,} |", flush=True)
            rows.append({"truth": truth.name, "way": way, "audits": len(ended), "images": images, **rates})
    print(json.dumps(rows))


def words() -> list[str]:
    return [word for word in VERDICTS if word != "unreliable"]


def rates_of(ended: list[tuple[str, int]]) -> dict[str, float]:
    counts = Counter(word for word, _ in ended)
    return {word: counts[word] / len(ended) for word in words()}


def simulated(truth: Truth, audits: int, seed: int = 0) -> NDArray[np.int64]:
    """Images gained, lost and gained under the non-adaptive attack only, so far, after every 100 images: (audits, 100,
    3)."""
    chances = [share / 100 for share in (truth.gained, truth.lost, truth.hidden)]
    drawn = np.random.default_rng(seed).multinomial(STEP, [*chances, 1 - sum(chances)], size=(audits, MOST // STEP))
    return drawn.cumsum(axis=1)[..., :3]


def looking(found: NDArray[np.int64], first: int = MOST) -> list[tuple[str, int]]:
    """The verdict of each audit, and after how many images it came: with looks after every 500 images, and, as long as
    an audit of `first` images is undecided, a new start with as many as it suggests."""
    ended = [("undecided", MOST)] * len(found)
    limits, left = np.full(len(found), first), np.arange(len(found))
    for count in range(STEP, MOST + 1, STEP):
        looks = left[(count % BLOCK == 0) | (limits[left] == count)]
        counts = found[looks, count // STEP - 1]
        for audit, word, row in zip(looks.tolist(), verdicts_at(counts, count), counts.tolist(), strict=True):
            if word != "undecided":
                ended[audit] = word, count
            elif limits[audit] == count < MOST:
                limits[audit] = min(needed(*row, count), MOST)
        left = left[[ended[audit][0] == "undecided" for audit in left.tolist()]]
    return ended


@cache
def needed(gained: int, lost: int, hidden: int, count: int) -> int:
    """How many images an undecided audit suggests."""
    union, non_adaptive = (replace(STUB, gained=each, lost=lost, count=count, difference=(each - lost) / count)
                           for each in (gained, gained + hidden))  # fmt: skip
    return images_needed(union, non_adaptive, MARGIN) or MOST


def verdicts_at(found: NDArray[np.int64], count: int) -> list[str]:
    """The verdict of the audit's rule on each row of counts; equal rows are decided once."""
    if not len(found):
        return []
    rows, which = np.unique(found, axis=0, return_inverse=True)
    gained, lost, hidden = rows.T
    pairs = zip(_seen(gained, lost, count), _seen(gained + hidden, lost, count), strict=True)
    verdicts = [verdict_of(union, non_adaptive, same=False, margin=MARGIN) for union, non_adaptive in pairs]
    return [verdicts[place] for place in which.ravel()]


def _seen(gained: NDArray[np.int64], lost: NDArray[np.int64], count: int) -> Iterator[Seen]:
    limits = (limit.tolist() for limit in anytime_limits(gained, lost, count))
    for gain, loss, *interval in zip(gained.tolist(), lost.tolist(), *limits, strict=True):
        yield Seen(gain, loss, count, (gain - loss) / count, tuple(interval))


if __name__ == "__main__":
    main()
