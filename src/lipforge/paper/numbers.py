"""Published numbers, to look up."""

from collections.abc import Iterable, Iterator
from itertools import product

from lipforge.paper.attacks import Name, known
from lipforge.paper.tables import Published

Setting = tuple[str, str, str, str]
"""Data set, model, variant and ratio."""


class Numbers:
    """Published numbers by setting, attack and radius; the first of several that should be equal."""

    def __init__(self, rows: Iterable[Published]) -> None:
        self.rows = tuple(rows)
        self._sweeps: dict[Setting, dict[Name, dict[float, Published]]] = {}
        for row in self.rows:
            attacks = self._sweeps.setdefault((row.dataset, row.model, row.variant, row.ratio), {})
            attacks.setdefault(known(row.attack), {}).setdefault(row.radius, row)

    def get(self, setting: Setting, row: Published) -> Published | None:
        """The number of this row's attack and radius in a setting."""
        return self._sweeps.get(setting, {}).get(known(row.attack), {}).get(row.radius)

    def sweeps(self, kind: str) -> Iterator[list[Published]]:
        """The numbers of each attack of a kind on each model, by increasing radius."""
        for attacks in self._sweeps.values():
            for (found, _), sweep in attacks.items():
                if found == kind:
                    yield [sweep[radius] for radius in sorted(sweep)]

    def pairs(self, first: str, second: str) -> Iterator[tuple[Published, Published]]:
        """The numbers of attacks of two kinds on the same model at the same radius."""
        for attacks in self._sweeps.values():
            strong, weak = ([sweep for (found, _), sweep in attacks.items() if found == k] for k in (first, second))
            for one, other in product(strong, weak):
                yield from ((one[radius], other[radius]) for radius in sorted(one) if radius in other)

    def base_of(self, row: Published) -> Published | None:
        """The number of the base model for this row's attack and radius."""
        return self.get((row.dataset, row.model, "", "0"), row)
