import pytest

from lipforge.errors import InputError
from lipforge.reports.parsed import gained_lost, robust_results
from lipforge.reports.read import DamageError, Fields, read_run
from lipforge.runs import RunDir
from tests.reports.made import robust, write_plain

GOOD = {"n": 3, "x": 0.5, "t": "a", "pair": [0, 1], "list": [{"n": 1}], "words": ["a"]}


def test_fields_give_what_is_there():
    fields = Fields(GOOD, "f.json")
    assert (fields.whole("n"), fields.number("x"), fields.text("t")) == (3, 0.5, "a")
    assert (fields.interval("pair"), fields.texts("words"), fields.optional("none")) == ((0, 1), ("a",), None)
    assert fields.each("list")[0].whole("n") == 1


@pytest.mark.parametrize(
    ("method", "name", "values"),
    [
        ("number", "x", {"x": "0.5"}),
        ("number", "x", {"x": True}),
        ("number", "x", {"x": float("nan")}),
        ("number", "x", {}),
        ("whole", "x", {"x": 1.5}),
        ("text", "x", {"x": 1}),
        ("interval", "x", {"x": [1]}),
        ("interval", "x", {"x": [1, None]}),
        ("each", "x", {"x": [1]}),
        ("texts", "x", {"x": "ab"}),
        ("inner", "x", {"x": []}),
    ],
)
def test_a_field_of_the_wrong_kind_is_damage_that_names_the_file(method, name, values):
    with pytest.raises(DamageError, match=r"f\.json"):
        getattr(Fields(values, "f.json"), method)(name)


def test_a_place_that_is_no_run_is_an_error(tmp_path):
    with pytest.raises(InputError, match="not a folder"):
        read_run(tmp_path / "nowhere")
    with pytest.raises(InputError, match="holds no results"):
        read_run(tmp_path)


def test_damaged_files_are_named_and_the_others_are_read(tmp_path):
    write_plain(tmp_path, "good", "comparison", {"count": 1})
    (tmp_path / "results" / "cut.json").write_text('{"kind": "rob')
    (tmp_path / "results" / "list.json").write_text("[1]")
    (tmp_path / "results" / "nameless.json").write_text("{}")
    (tmp_path / "results" / "future.json").write_text('{"kind": "robust", "format": 2}')
    (tmp_path / "environment.json").write_text("{")
    run = read_run(tmp_path)
    assert [result.name for result in run.results] == ["good"]
    for name in ("cut.json", "list.json", "nameless.json", "future.json", "environment.json"):
        assert sum(name in problem for problem in run.problems) == 1, run.problems
    assert not any(str(tmp_path) in problem for problem in run.problems)


def test_a_robust_result_survives_the_way_through_json(tmp_path):
    made = robust("forged", (44, 18, 1, 1), 63)
    RunDir.open(tmp_path).write_result("x", made)
    (found,) = robust_results(read_run(tmp_path))
    assert (found.label, found.robust, found.interval) == (made.label, made.robust_accuracy, made.interval)
    assert [vars(stage) for stage in found.stages] == [vars(stage) for stage in made.stages]
    assert found.outcome == made.outcome


def test_evaluations_of_other_images_are_not_paired(tmp_path):
    run = RunDir.open(tmp_path)
    for label, digest in (("base", "a"), ("forged", "a"), ("other", "b")):
        run.write_result(label, robust(label, (3, 2, 1, 0), 4, data_digest=digest))
    base, forged, other = robust_results(read_run(tmp_path))
    assert gained_lost(base, forged) is not None
    assert gained_lost(base, other) is None
