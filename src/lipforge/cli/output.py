"""Results on stdout, everything else on stderr."""

from typing import Any

from rich.console import Console
from rich.table import Table

from lipforge.records import to_json

results = Console(highlight=False)
notes = Console(stderr=True, highlight=False)


def table(title: str, columns: dict[str, str], rows: list[list[str]]) -> Table:
    """A table whose columns are given with their alignment, such as {"site": "left", "bound": "right"}."""
    made = Table(title=title, title_justify="left", header_style="bold")
    for name, justify in columns.items():
        made.add_column(name, justify=justify, overflow="fold")  # type: ignore[arg-type]  # a rich literal
    for row in rows:
        made.add_row(*row)
    return made


def print_json(value: Any) -> None:
    """One JSON value on stdout and nothing else, for programs to read."""
    print(to_json(value), end="")


def ratio_text(ratio: float) -> str:
    """A ratio as people write it.

    >>> ratio_text(2**-7), ratio_text(0.1), ratio_text(0.0)
    ('2^-7', '0.1', '0')
    """
    for exponent in range(1, 21):
        if ratio == 2.0**-exponent:
            return f"2^-{exponent}"
    return f"{ratio:g}"
