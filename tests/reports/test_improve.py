import pytest

from lipforge.improvement import improve
from lipforge.reports.blocks import Figure, Prose
from lipforge.reports.read import read_run
from lipforge.reports.sections.improve import improvements
from lipforge.runs import RunDir
from tests.improvement.lopsided import THREAT, Lopsided, symmetric


@pytest.fixture
def section(tmp_path):
    improve(
        Lopsided(), symmetric(140), THREAT, calibrate=0, validate=120, max_cost=2, parts=("tta",),
        run=RunDir.open(tmp_path), show_progress=False,
    )  # fmt: skip
    return improvements(read_run(tmp_path))


def test_every_candidate_is_a_point_over_its_cost_and_a_row(section):
    figure, prose = section.blocks
    assert isinstance(figure, Figure)
    (panel,) = figure.charts  # nothing was fitted, so there is no panel over the time of fitting
    points = {series.name: [point.x for point in series.points] for series in panel.series}
    assert points == {"base": [1.0], "chosen": [2.0]}
    assert panel.level == next(series for series in panel.series if series.name == "base").points[0].y
    assert [row[0] for row in figure.table.rows] == ["nothing", "mirror (chosen)"]
    assert "Chosen: mirror." in figure.caption
    assert isinstance(prose, Prose)
    assert prose.items[0].startswith("mirror: +")


def test_a_run_without_one_has_no_section(tmp_path):
    RunDir.open(tmp_path).write_result("improve", improve(
        Lopsided(), symmetric(30), THREAT, calibrate=0, validate=10, max_cost=2, parts=("tta",), show_progress=False,
    ).record)  # fmt: skip
    assert improvements(read_run(tmp_path)).blocks
    run = read_run(tmp_path)
    run.results.clear()
    assert not improvements(run).blocks
