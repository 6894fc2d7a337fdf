"""Which published numbers a call is about, and which models have to be measured for them."""

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from lipforge.errors import InputError
from lipforge.paper import PaperModel, Published, Settings, load_paper
from lipforge.text import ratio_text
from lipforge.types import parse_number

CLEAN, TRANSFER, AUTOATTACK = "clean", "transfer", "AA"


class Setting(NamedTuple):
    """One classifier to measure: the ratio (0 is the base), the variant, and for "+ Weight" the frequency."""

    ratio: float
    variant: str = ""
    frequency: float | None = None

    def __str__(self) -> str:
        at = "" if self.frequency is None else f"at {self.frequency:g}"
        return " ".join(filter(None, ("base" if self.ratio == 0 else ratio_text(self.ratio), self.variant, at)))


class Cell(NamedTuple):
    """A published number, and one of the settings at which it is measured."""

    published: Published
    setting: Setting


Group = dict[Setting, list[Cell]]


def published_rows(table: str, row: str = "*") -> list[Published]:
    """The numbers of a table whose model, or model with its ratio, matches the glob `row`, in any case of letters.

    >>> len(published_rows("1a")), len(published_rows("1a", "rst*")), len(published_rows("4", "*trades 2^-7"))
    (20, 4, 2)
    """
    rows = [one for one in load_paper() if one.table == table]
    chosen = [one for one in rows if _matches(one.model, row) or _matches(str(one), row)]
    return chosen or matching([one.model for one in rows], row, what=f"table {table}")


def matching(models: Sequence[str], row: str, *, what: str) -> list[Any]:
    """The models that the glob matches; an error that names all of them if there is none."""
    chosen = [model for model in models if _matches(model, row)]
    if not chosen:
        raise InputError(f"row must match a model of {what}, got {row!r}; it has {', '.join(dict.fromkeys(models))}")
    return chosen


def _matches(name: str, glob: str) -> bool:
    return fnmatchcase(name.lower(), glob.lower())


def by_model(rows: Iterable[Published]) -> dict[tuple[str, str], list[Published]]:
    """The rows of each model, by data set and name, in the table's order."""
    groups: dict[tuple[str, str], list[Published]] = {}
    for row in rows:
        groups.setdefault((row.dataset, row.model), []).append(row)
    return groups


def settings_of(
    row: Published, settings: Settings, ratios: Sequence[float], frequencies: Sequence[float]
) -> list[Setting]:
    """What is measured for a published number: several settings where the paper leaves the ratio open, or for "+
    Weight" the frequency."""
    shares = [row.share] if row.share is not None else list(ratios or _numbers(settings.ratios))
    folds = row.variant in settings.variants and settings.variants[row.variant].fold
    chosen: Sequence[float | None] = (frequencies or (settings.frequency,)) if folds else (None,)
    return [Setting(share, row.variant, frequency) for share in shares for frequency in chosen]


def cells(
    rows: Iterable[Published], settings: Settings, ratios: Sequence[float], frequencies: Sequence[float]
) -> Group:
    """The cells of one model by setting, base first."""
    found: Group = {}
    for row in rows:
        for setting in settings_of(row, settings, ratios, frequencies):
            found.setdefault(setting, []).append(Cell(row, setting))
    return dict(sorted(found.items(), key=lambda item: item[0].ratio != 0))


def idle_notes(group: Sequence[Group], ratios: Sequence[float], frequencies: Sequence[float]) -> list[str]:
    """Says where ratios or frequencies were given that these settings have no use for."""
    forged = [cell for one in group for some in one.values() for cell in some if cell.setting.ratio != 0]
    notes = []
    if ratios and all(cell.published.share is not None for cell in forged):
        notes.append("the ratios that were given have no effect: the paper states those of this table")
    if frequencies and all(cell.setting.frequency is None for cell in forged):
        notes.append('the frequencies that were given have no effect: this table has no "+ Weight" rows')
    return notes


def published_clean(paper: PaperModel) -> list[float]:
    """The clean accuracies that the paper prints for the base of a model, in percent."""
    name = paper.dataset, paper.model
    rows = (row for row in load_paper() if (row.dataset, row.model) == name and row.share == 0)
    return list(dict.fromkeys(row.accuracy for row in rows if row.attack == CLEAN))


def check_choices(ratios: Sequence[float], frequencies: Sequence[float]) -> None:
    """Raise unless all are different and lie in (0, 1]: a ratio of 0 would be the base."""
    for name, values in (("ratio", ratios), ("frequency", frequencies)):
        for value in values:
            if not 0 < value <= 1:
                raise InputError(f"{name} must lie in (0, 1], got {value:g}")
        if len(set(values)) < len(values):
            raise InputError(f"{name} must list different numbers, got {', '.join(f'{value:g}' for value in values)}")


def _numbers(texts: Iterable[str]) -> list[float]:
    return [parse_number(text, name="ratio") for text in texts]
