import pytest

from tests.reports.made import full_run
from tests.schemas import result_of


@pytest.fixture(name="folder")
def _folder(tmp_path):
    return full_run(tmp_path / "demo")


def test_the_page_is_written_and_its_place_printed(run, folder):
    ended = run("report", folder)
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.strip() == f"wrote {folder / 'report.html'}"
    assert (folder / "report.html").read_text().startswith("<!doctype html>")


def test_two_runs_go_into_one_page(run, folder, tmp_path):
    other = full_run(tmp_path / "other")
    ended = run("report", folder, other, "--out", tmp_path / "both.html")
    assert ended.code == 0
    assert "Runs side by side" in (tmp_path / "both.html").read_text()


def test_a_chosen_table_goes_to_stdout(run, folder):
    ended = run("report", folder, "--format", "markdown", "--table", "attacks")
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.startswith("**Images that each attack of autoattack broke**")
    assert not (folder / "report.html").exists()


def test_several_csv_tables_are_told_apart_by_name(run, folder):
    ended = run("report", folder, "--format", "csv", "--table", "accuracy", "--table", "cost")
    assert [line for line in ended.out.splitlines() if line.startswith("#")] == ["# accuracy", "# cost"]


def test_json_says_what_is_in_the_report(run, folder):
    said = result_of(run("report", folder, "--json").out)
    assert said["report"] == str(folder / "report.html")
    assert said["sections"][:2] == ["verdict", "accuracy"]
    assert "accuracy" in said["tables"]
    assert said["problems"] == []


def test_a_damaged_file_is_named_on_stderr_and_the_page_is_written_all_the_same(run, folder):
    (folder / "results/search.json").write_text("{")
    ended = run("report", folder)
    assert ended.code == 0
    assert "results/search.json is not valid JSON" in ended.err
    assert "wrote" in ended.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--format", "pdf"), "--format must be one of html, csv, latex, markdown, got 'pdf'"),
        (("--table", "accuracy"), "--table is for csv"),
        (("--format", "csv", "--table", "none"), "--table must be one of accuracy,"),
        (("--out", "."), "--out must name a file"),
    ],
)
def test_wrong_use_is_explained(run, folder, arguments, message):
    ended = run("report", folder, *arguments)
    assert ended.code == 2
    assert message in " ".join(ended.err.split())


def test_a_folder_without_results_is_wrong_use(run, tmp_path):
    ended = run("report", tmp_path)
    assert ended.code == 2
    assert "holds no results" in ended.err
