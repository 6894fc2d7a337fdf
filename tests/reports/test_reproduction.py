from dataclasses import replace

import pytest

from lipforge.reports import write_report
from lipforge.reports.blocks import Grid, Prose
from lipforge.reports.read import read_run
from lipforge.reports.sections.reproduction import reproductions
from lipforge.results import ReproducedRow, Reproduction
from lipforge.runs import RunDir

ROWS = (
    ReproducedRow("CIFAR-10", "RST-AWP", "", "0", "0", "clean", "0", 0.8825, 0.88, (0.87, 0.89), True, 10_000),
    ReproducedRow(
        "CIFAR-10", "RST-AWP", "", "2^-7", "2^-7", "AA", "8/255", 0.6276, 0.59, (0.58, 0.6), False, 10_000, True
    ),
    ReproducedRow("CIFAR-10", "LTD", "", "0", "0", "AA", "8/255", 0.5694, note="save it as LTD.pt"),
)


@pytest.fixture
def run(tmp_path):
    found = RunDir.open(tmp_path)
    found.write_result("reproduction__table-1a", Reproduction("1a", "accuracies", False, 0, ROWS, ("a note",)))
    return tmp_path


def test_published_stands_beside_measured_and_is_marked_outside_the_interval(run):
    grid, prose = reproductions(read_run(run)).blocks
    assert isinstance(grid, Grid)
    texts = grid.table.texts()
    assert texts[0][5:9] == ["88.2", "88.0 [87.0, 89.0]", "10,000", ""]
    assert texts[1][2:5] == ["2^-7", "AA", "8/255"]
    assert texts[1][8] == "above, unreliable"
    assert texts[2][6:] == ["", "", "", "missing"]
    assert isinstance(prose, Prose)
    assert prose.items == ("a note", "CIFAR-10 LTD: save it as LTD.pt")


def test_stand_ins_are_called_so_and_never_marked(tmp_path):
    rows = tuple(replace(row, inside=None) for row in ROWS)
    RunDir.open(tmp_path).write_result("x", Reproduction("1a", "accuracies", True, 0, rows))
    (grid, _) = reproductions(read_run(tmp_path)).blocks
    assert isinstance(grid, Grid)
    assert "mean nothing" in grid.table.title
    assert grid.table.texts()[1][8] == "unreliable"


def test_the_page_has_the_section(run):
    assert "Published and measured" in write_report(run).read_text()


def test_a_run_without_one_has_no_section(run):
    found = read_run(run)
    found.results.clear()
    assert not reproductions(found).blocks
