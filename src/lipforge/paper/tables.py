"""Published accuracies, one per row, to look up: the paper's own tables, or a user's file with the same columns.

`tables.csv` holds every number of tables 1 to 11 of the paper, in the order of its source, as printed, in percent. From
the text: CIFAR tables without a radius are at 8/255, those of ImageNet at 4/255 (section 4.1); "Original+Ours" in table
1 has the ratio 2^-7 (section 4.2). The ratio of tables 2, 6 and 8 is not stated anywhere, and is "unstated" here.
"""

import csv
import io
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from functools import cache
from importlib import resources
from itertools import product
from pathlib import Path

from lipforge.errors import InputError
from lipforge.types import parse_number

UNSTATED = "unstated"

KINDS = {
    "clean": r"clean|natural|nat|no attack",
    "fgsm": r"fgsm",
    "pgd": r"pgd((?: ?\d+)*)(?: steps)?",
    "cw": r"(?:cw|c&w|c & w|carlini wagner)(?: ?(?:inf|linf|∞))?((?: ?\d+)*)(?: steps)?",
    "aa": r"aa|auto ?attack(?: standard)?|aa standard",
    "transfer": r"transfer",
}
"""What the rules know, each with the spellings it goes by, in small letters and with spaces between words."""

Name = tuple[str, str]
"""What an attack is ("" for what no rule knows), and what tells it apart from others of its kind."""

Setting = tuple[str, str, str, str]
"""Data set, model, variant and ratio."""


@dataclass(frozen=True)
class Published:
    """An accuracy in percent. A base model has the ratio "0", clean images have eps "0"; "+ Weight" is a variant."""

    table: str
    dataset: str
    model: str
    variant: str
    ratio: str
    attack: str
    eps: str
    accuracy: float

    @property
    def radius(self) -> float:
        return parse_number(self.eps, name="eps")

    @property
    def share(self) -> float | None:
        """`ratio` as a number; None where the source does not state it."""
        return None if self.ratio == UNSTATED else parse_number(self.ratio, name="ratio")

    @property
    def setting(self) -> Setting:
        return self.dataset, self.model, self.variant, self.ratio

    @property
    def kind(self) -> Name:
        return known(self.attack)

    def __str__(self) -> str:
        words = (self.dataset, self.model, self.variant, "base" if self.share == 0 else self.ratio)
        return " ".join(word for word in words if word)


COLUMNS = tuple(field.name for field in fields(Published))


@cache
def load_paper() -> tuple[Published, ...]:
    """All numbers of the paper's tables, in their order."""
    text = resources.files("lipforge.paper").joinpath("tables.csv").read_text(encoding="utf-8")
    return _parse(text, name="tables.csv")


def read_table(path: str | Path) -> tuple[Published, ...]:
    """The numbers of a CSV file with the columns of `Published`; a bad row is an error that names it."""
    try:
        return _parse(Path(path).read_text(encoding="utf-8-sig"), name=str(path))
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not text in UTF-8: {error}") from None
    except csv.Error as error:
        raise InputError(f"{path} is not a CSV table: {error}") from None


class Numbers:
    """Published numbers by setting, attack and radius; the first of several that should be equal."""

    def __init__(self, rows: Iterable[Published]) -> None:
        self.rows = tuple(rows)
        self._sweeps: dict[Setting, dict[str, dict[str, dict[float, Published]]]] = {}
        for row in self.rows:
            kind, which = row.kind
            attacks = self._sweeps.setdefault(row.setting, {}).setdefault(kind, {})
            attacks.setdefault(which, {}).setdefault(row.radius, row)

    def get(self, setting: Setting, row: Published) -> Published | None:
        kind, which = row.kind
        return self._sweeps.get(setting, {}).get(kind, {}).get(which, {}).get(row.radius)

    def sweeps(self, kind: str) -> Iterator[list[Published]]:
        """The numbers of each attack of a kind on each model, by increasing radius."""
        for attacks in self._sweeps.values():
            for sweep in attacks.get(kind, {}).values():
                yield [sweep[radius] for radius in sorted(sweep)]

    def pairs(self, first: str, second: str) -> Iterator[tuple[Published, Published]]:
        """The numbers of attacks of two kinds on the same model at the same radius."""
        for attacks in self._sweeps.values():
            for one, other in product(attacks.get(first, {}).values(), attacks.get(second, {}).values()):
                yield from ((one[radius], other[radius]) for radius in sorted(one) if radius in other)

    def base_of(self, row: Published) -> Published | None:
        return self.get((row.dataset, row.model, "", "0"), row)


def known(attack: str) -> Name:
    """The attack's kind, and its number of steps if the name says it; an unknown attack keeps its name.

    >>> known("PGD-20"), known("pgd_20"), known("Auto-Attack"), known("MIM")
    (('pgd', '20'), ('pgd', '20'), ('aa', ''), ('', 'mim'))
    """
    words = re.sub(r"[\s_\-^()/]+", " ", attack.lower()).strip()
    for kind, spelling in KINDS.items():
        found = re.fullmatch(spelling, words)
        if found:
            return kind, "-".join("".join(found.groups(default="")).split())
    return "", words


def _parse(text: str, *, name: str) -> tuple[Published, ...]:
    reader = csv.DictReader(io.StringIO(text))
    missing = [column for column in COLUMNS if column not in (reader.fieldnames or ())]
    if missing:
        raise InputError(f"{name} must have the columns {', '.join(COLUMNS)}; it lacks {', '.join(missing)}")
    rows = tuple(_row(row, f"{name}, line {reader.line_num}") for row in reader)
    if not rows:
        raise InputError(f"{name} has no rows")
    return rows


def _row(row: dict[str, str | None], where: str) -> Published:
    words = {column: (row[column] or "").strip() for column in COLUMNS}
    try:
        accuracy = parse_number(words.pop("accuracy"), name="accuracy")
        if not 0 <= accuracy <= 100:
            raise InputError(f"accuracy must be in percent, between 0 and 100, got {accuracy:g}")
        published = Published(**words, accuracy=accuracy)
        if (published.share or 0) < 0 or published.radius < 0:
            raise InputError(f"ratio and eps must not be negative, got {published.ratio} and {published.eps}")
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
    return published
