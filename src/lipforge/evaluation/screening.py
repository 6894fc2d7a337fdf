"""What a contest's first pass over its images hands to the second, and the two put together."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lipforge.attacks.trial import ROBUST

Records = Mapping[str, dict[str, Any]]
"""What became of the images of one shard, for each entrant by its label; ready for JSON."""


@dataclass(frozen=True)
class Screened:
    """What the screening left of one entrant: outcomes by image, the images that are due, and those due by chance."""

    outcome: Mapping[int, str]
    due: frozenset[int]
    drawn: frozenset[int]


def due_of(shards: Sequence[Records]) -> list[int]:
    """The images that are due for some entrant after the screening, in order."""
    return sorted({image for shard in shards for record in shard.values() for image in record["due"]})


def screened(shards: Sequence[Records], label: str) -> Screened:
    """What the screening of all shards left of one entrant."""
    records = [shard[label] for shard in shards]
    return Screened(
        {record["first"] + place: word for record in records for place, word in enumerate(record["outcome"])},
        *(frozenset(image for record in records for image in record[name]) for name in ("due", "drawn")),
    )


def settled(shards: Sequence[Records], finished: Sequence[Records], due: Sequence[int], label: str) -> list[Any]:
    """The records of one entrant from both passes, with outcomes and the number of spared images as they ended."""
    late = dict(zip(due, (word for shard in finished for word in shard[label]["outcome"]), strict=True))
    records = []
    for record in (shard[label] for shard in shards):
        first = record["first"]
        outcome = [late.get(first + place, word) for place, word in enumerate(record["outcome"])]
        spared = sum(outcome[image - first] == ROBUST for image in record["spared"])
        records.append({**record, "outcome": outcome, "spared": spared})
    return records + [{**shard[label], "outcome": [], "spared": 0} for shard in finished]
