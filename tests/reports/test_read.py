import json
import subprocess
import sys

import pytest

from lipforge.errors import InputError
from lipforge.reports.read import read_run
from lipforge.reports.sections.evaluations import paired
from lipforge.runs import RunDir
from tests.reports.made import write_values
from tests.reports.results import compared, robust


def test_a_place_that_is_no_run_is_an_error(tmp_path):
    with pytest.raises(InputError, match="not a folder"):
        read_run(tmp_path / "nowhere")
    with pytest.raises(InputError, match="holds no results"):
        read_run(tmp_path)


def test_damaged_files_are_named_and_the_others_are_read(tmp_path):
    write_values(tmp_path, "good", "comparison", compared(66, 8, 1))
    (tmp_path / "results" / "cut.json").write_text('{"kind": "rob')
    (tmp_path / "results" / "list.json").write_text("[1]")
    (tmp_path / "results" / "nameless.json").write_text("{}")
    (tmp_path / "results" / "older.json").write_text('{"kind": "robust", "format": 1}')
    (tmp_path / "results" / "future.json").write_text('{"kind": "robust", "format": 3}')
    (tmp_path / "environment.json").write_text("{")
    run = read_run(tmp_path)
    assert run.results == {"good": compared(66, 8, 1)}
    assert run.kinds == {"good": "comparison"}
    for name in ("cut.json", "list.json", "nameless.json", "older.json", "future.json", "environment.json"):
        assert sum(name in problem for problem in run.problems) == 1, run.problems
    assert not any(str(tmp_path) in problem for problem in run.problems)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("count", "200", "'count' must be a whole number, got '200'"),
        ("seconds", 10**400, "'seconds' must be a number"),
        ("robust_accuracy", 1e308, "'robust_accuracy' must be a number, got '1e+308'; the largest allowed is 1e+100"),
        ("interval", [0.1], "'interval' must be a list of 2 values"),
        ("stages", [{}], "'stages' 0: 'attack' is missing"),
        ("notes", ["a text of format 1"], "'notes' 0 must be an object"),
    ],
)
def test_a_field_of_the_wrong_kind_is_named_and_its_file_left_out(tmp_path, field, value, message):
    RunDir.open(tmp_path).write_result("x", robust("base", (3, 2, 1, 0), 4))
    path = tmp_path / "results" / "x.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {field: value}))
    run = read_run(tmp_path)
    assert not run.results
    assert run.problems[0].startswith("results/x.json: ")
    assert message in run.problems[0]


def test_a_robust_result_survives_the_way_through_json(tmp_path):
    made = robust("forged", (44, 18, 1, 1), 63)
    RunDir.open(tmp_path).write_result("x", made)
    assert read_run(tmp_path).evaluations == [made]


def test_evaluations_of_other_images_are_not_paired(tmp_path):
    run = RunDir.open(tmp_path)
    for label, digest in (("base", "a"), ("forged", "a"), ("other", "b")):
        run.write_result(label, robust(label, (3, 2, 1, 0), 4, data_digest=digest))
    base, forged, other = read_run(tmp_path).evaluations
    assert paired(base, forged) is not None
    assert paired(base, other) is None


def test_reports_are_written_without_torch():
    code = "import sys, lipforge.reports; assert 'torch' not in sys.modules; lipforge.reports.make_gallery"
    subprocess.run([sys.executable, "-c", code], check=True)
