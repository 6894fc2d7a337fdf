"""What a page is made of: sections of text, figures, tables and pictures."""

from dataclasses import dataclass
from typing import TypeAlias

from lipforge.reports.charts import Chart
from lipforge.reports.tables import Table
from lipforge.results import GalleryItem


@dataclass(frozen=True)
class Figure:
    """One or more charts under a caption that says what to see, with the numbers behind them."""

    caption: str
    charts: tuple[Chart, ...]
    table: Table | None = None

    @property
    def legend(self) -> tuple[tuple[str, str], ...]:
        """Roles and their names, each once, over all charts."""
        return tuple(dict.fromkeys(entry for chart in self.charts for entry in chart.legend))


@dataclass(frozen=True)
class Grid:
    """A table that is open to read."""

    table: Table
    note: str = ""


@dataclass(frozen=True)
class Prose:
    """A paragraph, or a list of short remarks."""

    text: str = ""
    items: tuple[str, ...] = ()


@dataclass(frozen=True)
class Code:
    """Text to copy: a command, a configuration."""

    title: str
    text: str
    folded: bool = False


@dataclass(frozen=True)
class Pictures:
    caption: str
    pictures: tuple[GalleryItem, ...]


@dataclass(frozen=True)
class Verdict:
    """The sentence of an audit, with a word and a sign so that colour is not all that carries it."""

    word: str
    sign: str
    tone: str
    sentence: str
    details: tuple[str, ...] = ()


Block: TypeAlias = Figure | Grid | Prose | Code | Pictures | Verdict


@dataclass(frozen=True)
class Section:
    """A heading, a line that says what is below, and blocks."""

    name: str
    title: str
    lead: str
    blocks: tuple[Block, ...] = ()
