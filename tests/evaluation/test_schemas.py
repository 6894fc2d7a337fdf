"""Every result of an evaluation fits its schema in the docs, and the schemas refuse what is no result."""

import importlib.util

import pytest

from lipforge.attacks import FGSM
from lipforge.certification import bracket
from lipforge.corruptions import corrupt
from lipforge.evaluation import curve, evaluate, sweep, transfer
from lipforge.improvement import improve
from lipforge.results import RESULTS, compare_brackets, compare_corrupted, compare_curves, record
from lipforge.search.choose import choose_ratio
from lipforge.types import Threat
from tests.attacks.oracles import small_images, small_net
from tests.evaluation.toys import labelled, linear
from tests.improvement.lopsided import Lopsided, symmetric
from tests.schemas import SCHEMAS, problems

THREATS = [Threat("linf", 0.01), Threat("linf", 0.02)]


def _results():
    model = small_net()
    data = small_images(model, 12)

    def search(groups):
        return choose_ratio(
            lambda setting: {"only": model},
            data,
            attack=FGSM(),
            threat=THREATS[0],
            metric="non-adaptive",
            ratios=[0.5, 0.25],
            groups=groups,
        )

    return [
        evaluate(model, data, FGSM(), THREATS[0]),
        sweep({"mine": model}, data, [FGSM()], THREATS),
        transfer(model, model, data, FGSM(), THREATS[0]),
        search(()),
        search(("a*", "b*")),
        improve(Lopsided(), symmetric(40), THREATS[0], calibrate=0, validate=20, parts=("tta",), max_cost=2).record,
        found := curve(model, data, "linf", eps=0.02, attack="fmn:steps=3"),
        compare_curves(found, found),
        seen := corrupt(linear(size=8), labelled(linear(size=8), size=8), corruptions=["contrast"]),
        compare_corrupted(seen, seen),
        made := bracket(model, data, THREATS[0], attack="fgsm"),
        compare_brackets(made, made),
    ]


RECORDS = [record(result) for result in _results()]


@pytest.mark.parametrize("found", RECORDS, ids=lambda found: found["kind"])
def test_every_result_fits_its_schema(found):
    assert problems(found, found["kind"]) == []


def test_the_schemas_in_the_docs_are_those_of_the_dataclasses():
    spec = importlib.util.spec_from_file_location("schemas", SCHEMAS.parents[1] / "tools" / "schemas.py")
    assert spec is not None
    assert spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    found = {path.stem: path.read_text() for path in SCHEMAS.glob("*.json")}
    assert found == tool.texts(), "run python tools/schemas.py"


def test_every_kind_of_result_has_a_schema_and_no_other():
    assert {path.stem for path in SCHEMAS.glob("*.json")} == {*RESULTS, "envelope"}


@pytest.mark.parametrize("found", RECORDS, ids=lambda found: found["kind"])
def test_no_field_may_be_missing_or_of_another_type(found):
    for key in found:
        assert problems({name: value for name, value in found.items() if name != key}, found["kind"]), key
        assert problems({**found, key: {"no": "such"}}, found["kind"]), key
    assert problems({**found, "extra": 1}, found["kind"])


@pytest.mark.parametrize(("place", "key"), [(0, "stages"), (1, "rows"), (3, "scores")])
def test_no_field_of_an_entry_may_be_missing(place, key):
    found = RECORDS[place]
    entry = found[key][-1]
    for name in entry:
        cut = {other: value for other, value in entry.items() if other != name}
        assert problems({**found, key: [*found[key][:-1], cut]}, found["kind"]), name
    assert problems({**found, key: [*found[key][:-1], {**entry, "extra": 1}]}, found["kind"])
