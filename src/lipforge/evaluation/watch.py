"""What the progress of an evaluation says."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lipforge.attacks.trial import ROBUST

Outcomes = Callable[[Mapping[str, Any]], Mapping[str, Sequence[str]]]
"""From a finished shard to the outcomes of its images, one sequence for each name that is shown."""


class Watch:
    """The share of images that stand so far, by name, and what is being tried: `str` has both.

    >>> watch = Watch()
    >>> watch.see({"outcome": ["robust", "fgsm"]}); watch("apgd")
    >>> str(watch)
    'robust 50.0 %  apgd'
    """

    def __init__(self, outcomes: Outcomes = lambda shard: {"robust": shard["outcome"]}) -> None:
        self._outcomes = outcomes
        self._seen: dict[str, list[int]] = {}
        self._attack = ""

    def __call__(self, attack: str) -> None:
        """An attack begins."""
        self._attack = attack

    def see(self, shard: Mapping[str, Any]) -> None:
        """A shard is finished, here or elsewhere."""
        for name, words in self._outcomes(shard).items():
            seen = self._seen.setdefault(name, [0, 0])
            seen[0] += words.count(ROBUST)
            seen[1] += len(words)

    def __str__(self) -> str:
        # A copy, because a bar is drawn by a thread of its own.
        shares = ", ".join(f"{name} {100 * stand / count:.1f} %" for name, (stand, count) in list(self._seen.items()))
        return "  ".join(part for part in (shares, self._attack) if part)
