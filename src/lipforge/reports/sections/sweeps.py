"""Accuracy over eps, attack by attack, and what transfers between models."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from lipforge.reports.blocks import Block, Figure, Grid, Prose, Section
from lipforge.reports.charts import Axis, Lines, Point, Series
from lipforge.reports.parsed import is_base, roles
from lipforge.reports.read import Fields, Run
from lipforge.reports.sections.accuracy import percent_tick
from lipforge.reports.tables import Cell, Column, Share, Table
from lipforge.reports.text import eps_text, percent


@dataclass(frozen=True)
class Dose:
    """What one attack left at one eps."""

    label: str
    attack: str
    eps: float
    count: int
    share: Share


@dataclass(frozen=True)
class Sweep:
    """All doses of a sweep, and the reasons to doubt them."""

    doses: tuple[Dose, ...]
    carry: bool
    notes: tuple[str, ...]


def sweeps(run: Run) -> Section | None:
    """A panel per attack: base and forged over eps. Transfer is a table below."""
    found = run.parsed("sweep", parse_sweep)
    doses = [dose for sweep in found for dose in sweep.doses]
    blocks: list[Block] = [_figure(doses, any(sweep.carry for sweep in found))] if doses else []
    if notes := tuple(note for sweep in found for note in sweep.notes):
        blocks.append(Prose("Reasons to doubt these numbers:", notes))
    if transfers := run.parsed("transfer", parse_transfer):
        blocks.append(
            Grid(Table("transfer", "Images made for one model, tried on another", TRANSFER, tuple(transfers)))
        )
    lead = (
        "Without masked gradients accuracy falls to 0 as eps grows, iterative attacks leave less than one-step ones, "
        "and images made for another model leave more than those made for the model itself."
    )
    return Section("sweep", "Accuracy over eps", lead, tuple(blocks)) if blocks else None


def _figure(doses: Sequence[Dose], carry: bool) -> Figure:
    colours = roles(sorted({dose.label for dose in doses}, key=lambda label: (not is_base(label), label)))
    attacks: dict[str, dict[str, list[Dose]]] = defaultdict(lambda: defaultdict(list))
    for dose in sorted(doses, key=lambda dose: (not is_base(dose.label), dose.label, dose.eps)):
        attacks[dose.attack][dose.label].append(dose)
    charts = tuple(_panel(attack, by_label, colours) for attack, by_label in attacks.items())
    columns = (Column("attack"), Column("classifier"), Column("eps"), Column("n", "count"), Column("robust", "share"))
    rows = tuple((d.attack, d.label, eps_text(d.eps), d.count, d.share)
                 for by_label in attacks.values() for same in by_label.values() for d in same)  # fmt: skip
    table = Table("sweep", "Accuracy over eps", columns, rows)
    caption = "Accuracy over eps, one panel per attack, with 95 % intervals."
    if carry:
        caption += " An image fooled at one eps counts as fooled at every larger one, so curves fall by construction."
    return Figure(caption, charts, table)


def _panel(attack: str, by_label: dict[str, list[Dose]], colours: dict[str, str]) -> Lines:
    eps = sorted({dose.eps for doses in by_label.values() for dose in doses})
    place = {value: float(number) for number, value in enumerate(eps)}
    series = tuple(
        Series(
            label,
            colours[label],
            tuple(Point(place[d.eps], d.share.value, _tip(d), d.share.interval) for d in doses),
        )
        for label, doses in by_label.items()
    )
    ends = "; ".join(
        f"{label} from {percent(doses[0].share.value)} % at {eps_text(doses[0].eps)} "
        f"to {percent(doses[-1].share.value)} % at {eps_text(doses[-1].eps)}"
        for label, doses in by_label.items()
    )
    marks = tuple((place[value], eps_text(value)) for value in eps)
    x = Axis("eps, evenly spaced", (-0.4, len(eps) - 0.6), marks=marks)
    return Lines(f"{attack}: {ends}.", x, Axis("robust accuracy, %", (0.0, 1.0), percent_tick), series, 250.0, attack)


def _tip(dose: Dose) -> str:
    inner = ""
    if dose.share.interval:
        inner = f" [{percent(dose.share.interval[0])}, {percent(dose.share.interval[1])}]"
    what = f"{dose.label}, {dose.attack}, eps {eps_text(dose.eps)}"
    return f"{what}: {percent(dose.share.value)} %{inner}, n = {dose.count:,}"


def parse_sweep(fields: Fields) -> Sweep:
    """A sweep from its JSON."""
    doses = [
        Dose(
            label=row.text("label"),
            attack=row.text("attack"),
            eps=row.number("eps"),
            count=row.whole("count"),
            share=Share(row.number("robust_accuracy"), row.interval("interval")),
        )
        for row in fields.each("rows")
    ]
    return Sweep(tuple(doses), fields.values.get("carry") is True, fields.texts("notes"))


TRANSFER = (
    Column("made for"),
    Column("tried on"),
    Column("attack"),
    Column("threat"),
    Column("n", "count"),
    Column("robust", "share"),
    Column("fooled the first", "count"),
    Column("fooled both", "count"),
)


def parse_transfer(fields: Fields) -> tuple[Cell, ...]:
    """A transfer from its JSON, as a row of the table."""
    return (
        *(fields.text(name) for name in ("source", "target", "attack", "threat")),
        fields.whole("count"),
        Share(fields.number("robust_accuracy"), fields.interval("interval")),
        fields.optional("shared"),
        fields.optional("transferred"),
    )
