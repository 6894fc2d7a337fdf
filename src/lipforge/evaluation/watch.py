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
        self._seen: dict[str, tuple[int, int]] = {}
        self._attack = ""

    def __call__(self, attack: str) -> None:
        """An attack begins."""
        self._attack = attack

    def see(self, shard: Mapping[str, Any]) -> None:
        """A shard is finished, here or elsewhere."""
        for name, words in self._outcomes(shard).items():
            self.add(name, words)

    def add(self, name: str, words: Sequence[str]) -> None:
        """More outcomes under one name."""
        stand, count = self._seen.get(name, (0, 0))
        # At once: the thread that draws the bar may look at any time.
        self._seen[name] = (stand + words.count(ROBUST), count + len(words))

    def __str__(self) -> str:
        seen = [(name, *counts) for name, counts in list(self._seen.items())]
        shares = ", ".join(f"{name} {100 * stand / count:.1f} %" for name, stand, count in seen if count)
        return "  ".join(part for part in (shares, self._attack) if part)
