"""Tables of the paper, measured again."""

from lipforge.reports.blocks import Block, Grid, Prose, Section
from lipforge.reports.read import Run
from lipforge.reports.tables import Cell, Share, Table, columns
from lipforge.results import ReproducedRow, Reproduction


def reproductions(run: Run) -> Section:
    """Published beside measured, a table per table of the paper."""
    blocks: list[Block] = []
    for found in run.of(Reproduction):
        blocks.append(Grid(_table(found)))
        reasons = dict.fromkeys(f"{row.dataset} {row.model}: {row.note}" for row in found.missing)
        if found.notes or reasons:
            blocks.append(Prose("Notes:", (*found.notes, *reasons)))
    lead = (
        "Each published accuracy beside the one that was measured, with its exact 95 % interval. Above or below says "
        "that the published one lies outside of it."
    )
    return Section("reproduction", "Published and measured", lead, tuple(blocks))


def _table(found: Reproduction) -> Table:
    heading = columns("data set", "model", "what", "attack", "eps", "published:share", "measured:share", "n:count",
                      "published is", "note")  # fmt: skip
    stand_in = " on stand-ins, whose numbers mean nothing" if found.stand_in else ""
    title = f"Table {found.table} of the paper{stand_in}: {found.title}, seed {found.seed}"
    rows = tuple(_row(row) for row in found.rows)
    return Table(found.name or f"reproduction-{found.table}", title, heading, rows)


def _row(row: ReproducedRow) -> tuple[Cell, ...]:
    measured = None if row.measured is None else Share(row.measured, row.interval)
    note = row.note if row.measured is not None else "missing"
    return (row.dataset, row.model, row.name, row.attack, "" if row.eps == "0" else row.eps, Share(row.published),
            measured, row.count or None, row.mark, note)  # fmt: skip
