"""What an evaluation found: put together from its shards, which may come from many processes and sessions."""

import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lipforge.attacks import Stage, by_square, square_notes
from lipforge.attacks.trial import MISCLASSIFIED, ROBUST
from lipforge.evaluation.intervals import Method, interval_of

COUNTED = re.compile(r"(?P<number>\d+) of \d+ images (?P<rest>.*)", re.DOTALL)


@dataclass(frozen=True)
class RobustResult:
    """How a classifier fared against one attack.

    `outcome` says for each image "robust", "misclassified" (as it was given) or which attack fooled it. Accuracies are
    shares of all `count` images, with 95 % intervals. `stages` say what each attack of a cascade left and cost.
    `seconds` are summed over shards: device-seconds. `given_up` counts robust images that autoattack("fast") left
    before its last round. `notes` are the reasons to doubt the result. `data_digest` tells which images they were.
    """

    label: str
    model: str
    data: str
    attack: str
    threat: str
    norm: str
    eps: float
    seed: int
    count: int
    clean_accuracy: float
    clean_interval: tuple[float, float]
    robust_accuracy: float
    interval: tuple[float, float]
    outcome: tuple[str, ...]
    stages: tuple[Stage, ...]
    forwards: int
    backwards: int
    seconds: float
    given_up: int
    notes: tuple[str, ...]
    interval_method: Method = "clopper-pearson"
    data_digest: str = ""

    @property
    def robust(self) -> list[bool]:
        """Whether each image stands."""
        return [word == ROBUST for word in self.outcome]

    def __str__(self) -> str:
        clean, robust = (
            share_text(self.clean_accuracy, self.clean_interval),
            share_text(self.robust_accuracy, self.interval),
        )
        return f"{self.label}: clean {clean}, {self.attack} {self.threat} {robust}, n={self.count} seed={self.seed}"


@dataclass(frozen=True)
class About:
    """What a result is about: the part of it that no shard knows."""

    label: str
    model: str
    data: str
    attack: str
    threat: str
    norm: str
    eps: float
    seed: int
    data_digest: str = ""


def gather(about: About, shards: Sequence[Mapping[str, Any]], method: Method = "clopper-pearson") -> RobustResult:
    """The result that the shards of an evaluation make up."""
    outcome = tuple(word for shard in shards for word in shard["outcome"])
    count, stages = len(outcome), merge_stages(shards)
    right, robust = count - outcome.count(MISCLASSIFIED), outcome.count(ROBUST)
    return RobustResult(
        **vars(about),
        count=count,
        clean_accuracy=right / count,
        clean_interval=interval_of(right, count, method),
        robust_accuracy=robust / count,
        interval=interval_of(robust, count, method),
        outcome=outcome,
        stages=stages,
        forwards=sum(shard["forwards"] for shard in shards),
        backwards=sum(shard["backwards"] for shard in shards),
        seconds=sum(shard["seconds"] for shard in shards),
        given_up=sum(len(shard["given_up"]) for shard in shards),
        notes=(*merge_notes(shards, count), *square_notes(by_square(stages), count)),
        interval_method=method,
    )


def merge_stages(parts: Sequence[Mapping[str, Any]]) -> tuple[Stage, ...]:
    """One stage per attack over all parts, each a mapping with its number of `right` images and its `stages`.

    Where nothing stood any more, or nothing looked suspicious, a part has fewer stages: it enters the ones that it
    lacks with what it had left.
    """
    lists = [_numbered(part["stages"]) for part in parts]
    merged = []
    left = [int(part["right"]) for part in parts]
    for key in _common_order([list(stages) for stages in lists]):
        spent = [stages[key] for stages in lists if key in stages]
        left = [stages[key].robust if key in stages else before for stages, before in zip(lists, left, strict=True)]
        merged.append(
            Stage(
                attack=key[0],
                robust=sum(left),
                forwards=sum(stage.forwards for stage in spent),
                backwards=sum(stage.backwards for stage in spent),
                seconds=sum(stage.seconds for stage in spent),
            )
        )
    return tuple(merged)


def merge_notes(shards: Sequence[Mapping[str, Any]], count: int) -> tuple[str, ...]:
    """Each note once; those that count images ("3 of 100 images ...") with their sum over all shards."""
    return _merged((shard["notes"] for shard in shards), count, int.__add__)


def overlay_notes(notes: Sequence[Sequence[str]], count: int) -> tuple[str, ...]:
    """Each note once; those that count images with the largest count, as all are about the same `count` images."""
    return _merged(notes, count, max)


def _merged(notes: Iterable[Sequence[str]], count: int, add: Callable[[int, int], int]) -> tuple[str, ...]:
    totals: dict[str, int | None] = {}
    for note in itertools.chain.from_iterable(notes):
        found = COUNTED.fullmatch(note)
        if found is None:
            totals[note] = None
        else:
            totals[found["rest"]] = add(totals.get(found["rest"]) or 0, int(found["number"]))
    return tuple(note if number is None else f"{number} of {count} images {note}" for note, number in totals.items())


def share_text(share: float, interval: tuple[float, float]) -> str:
    """A share in percent with its interval.

    >>> share_text(0.562, (0.531, 0.592))
    '56.2 [53.1, 59.2]'
    """
    return f"{100 * share:.1f} [{100 * interval[0]:.1f}, {100 * interval[1]:.1f}]"


Key = tuple[str, int]


def _numbered(stages: Sequence[Mapping[str, Any]]) -> dict[Key, Stage]:
    """Stages by attack and how often that attack came before: a cascade may hold one twice."""
    found: dict[Key, Stage] = {}
    for stage in stages:
        name = stage["attack"]
        found[name, sum(key[0] == name for key in found)] = Stage(**stage)
    return found


def _common_order(lists: Sequence[Sequence[Key]]) -> list[Key]:
    """All keys, each after those that come before it in its list.

    >>> _common_order([[("a", 0), ("d", 0)], [("a", 0), ("b", 0), ("d", 0)]])
    [('a', 0), ('b', 0), ('d', 0)]
    """
    order: list[Key] = []
    for keys in lists:
        place = 0
        for key in keys:
            if key in order:
                place = order.index(key) + 1
            else:
                order.insert(place, key)
                place += 1
    return order
