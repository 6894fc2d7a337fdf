import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import pytest

from lipforge.errors import InputError
from lipforge.records import to_builtins
from lipforge.reports import ReportWarning, build_report, write_report
from lipforge.results import VERDICTS, Note
from lipforge.runs import RunDir
from tests.reports.made import full_run, write_values
from tests.reports.results import analysis, audit, certificate, demo, robust, sweep

ALL = ["verdict", "accuracy", "tradeoff", "curve", "sweep", "corrupt", "waterfall", "audit", "layers", "bracket",
       "certified", "gallery", "cost", "provenance"]  # fmt: skip
HOSTILE = '"><script>alert(1)</script><img src=x onerror=alert(2)>'


class Tags(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.found = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))


def names(report):
    return [section.name for section in report.sections]


def test_a_full_run_has_every_section_in_order(tmp_path):
    assert names(build_report(full_run(tmp_path / "run"))) == ALL


def test_a_section_appears_only_if_its_data_exist(tmp_path):
    RunDir.open(tmp_path).write_result("x", robust("base", (52, 16, 1, 0), 64))
    assert names(build_report(tmp_path)) == ["accuracy", "waterfall", "cost", "provenance"]


def test_base_and_forged_without_an_audit_are_called_not_audited(tmp_path):
    run = RunDir.open(tmp_path)
    run.write_result("a", robust("base", (52, 16, 1, 0), 64))
    run.write_result("b", robust("forged", (44, 18, 1, 1), 63))
    (verdict,) = build_report(tmp_path).sections[0].blocks
    assert (verdict.word, verdict.tone) == ("Not audited", "doubt")


@pytest.mark.parametrize(
    ("word", "tone"),
    [
        ("real", "good"),
        ("not real", "bad"),
        ("harmful", "bad"),
        ("no change", "calm"),
        ("undecided", "doubt"),
        ("unreliable", "doubt"),
    ],
)
def test_each_verdict_has_its_word_sign_and_tone(tmp_path, word, tone):
    write_values(tmp_path, "audit", "audit", audit(word))
    (verdict,) = build_report(tmp_path).sections[0].blocks
    assert (verdict.word, verdict.sign, verdict.tone) == (VERDICTS[word].title, VERDICTS[word].sign, tone)
    assert verdict.sign.strip()
    assert word.split()[-1] in verdict.word.lower()
    assert verdict.sentence.startswith("Non-adaptive attacks show")


def test_verdicts_of_several_audits_hold_for_all_of_them_together(tmp_path):
    """The first audit did not know of the second."""
    found = audit("real")
    for name, p_value in (("first", 0.03), ("second", 0.5)):
        write_values(tmp_path, name, "audit", replace(found, union=replace(found.union, p_value=p_value)))
    first, second = build_report(tmp_path).sections[0].blocks
    assert first.word.startswith("Undecided")
    assert first.sentence.endswith("2 audits in this run, and after Holm's correction for that p = 0.06")
    assert second.word.startswith("Undecided")
    write_values(tmp_path, "first", "audit", replace(found, union=replace(found.union, p_value=0.02)))
    assert build_report(tmp_path).sections[0].blocks[0].word.startswith("Real gain")


def test_a_verdict_names_failed_checks_and_early_stopped_images(tmp_path):
    write_values(tmp_path, "audit", "audit", audit())
    (verdict,) = build_report(tmp_path).sections[0].blocks
    assert "n = 200" in verdict.details[0]
    assert verdict.details[1].startswith("Failed check: iterative at least as strong as one step: 27 of 64")
    assert verdict.details[2].endswith("stopped early: base 0 of 65, candidate 3 of 63")


def test_unknown_kinds_are_listed_and_do_not_break_the_page(tmp_path):
    write_values(tmp_path, "odd", "horoscope", {"stars": 3})
    page = write_report(tmp_path).read_text()
    assert "horoscope" in page


def test_damage_is_named_in_the_page_and_in_a_warning_and_the_rest_is_shown(tmp_path):
    full_run(tmp_path / "run")
    (tmp_path / "run/results/audit__linf-8over255.json").write_text('{"kind": "audit"')
    values = to_builtins(analysis())
    values["layers"][3]["threshold"] = "much"
    write_values(tmp_path / "run", "analysis", "analysis", values)
    with pytest.warns(ReportWarning) as caught:
        page = write_report(tmp_path / "run").read_text()
    said = [str(warning.message) for warning in caught]
    assert len(said) == 2
    assert any("results/audit__linf-8over255.json is not valid JSON" in text for text in said)
    assert any("results/analysis.json: 'layers' 3: 'threshold' must be a number, got 'much'" in text for text in said)
    assert "Files that could not be used" in page
    assert "audit__linf-8over255.json" in page
    assert names_of(page) == [f"run-1-{name}" for name in ALL if name not in ("audit", "layers")]


def names_of(page):
    return re.findall(r'<section id="(run-1-\w+)"', page)


@pytest.mark.parametrize("kind", ["robust", "comparison", "search", "sweep", "transfer", "certify", "analysis", "audit",
                                  "gallery", "demo", "improve", "export", "reproduction", "curve",
                                  "curve_comparison", "corrupt", "corrupt_comparison", "bracket",
                                  "bracket_comparison"])  # fmt: skip
@pytest.mark.filterwarnings("ignore::lipforge.reports.html.ReportWarning")
@pytest.mark.parametrize("values", [{}, {"points": [{}], "scores": [1], "rows": [{}], "items": 3, "layers": [{}]}])
def test_a_result_that_lacks_everything_does_not_stop_the_page(tmp_path, kind, values):
    write_values(tmp_path, "x", kind, values)
    assert "Provenance" in write_report(tmp_path).read_text()


@pytest.mark.filterwarnings("ignore::lipforge.reports.html.ReportWarning")
@pytest.mark.parametrize("value", [1e308, -1e308, 1e100, -1e100, 5e-324])
@pytest.mark.parametrize("field", ["robust_accuracy", "clean_accuracy", "seconds", "eps"])
def test_an_absurd_number_does_not_stop_the_page(tmp_path, field, value):
    found = robust("base", (52, 16, 1, 0), 64, **{field: value})
    write_values(tmp_path, "x", "robust", replace(found, stages=()))
    assert "Provenance" in write_report(tmp_path).read_text()
    damaged = abs(value) > (1.0 if field.endswith("accuracy") else 1e100)
    assert bool(build_report(tmp_path).problems) == damaged


def test_names_from_the_json_cannot_become_markup(tmp_path):
    run = RunDir.open(tmp_path / "run")
    evil: dict[str, Any] = {
        **dict.fromkeys(("label", "model", "data", "attack", "threat"), HOSTILE),
        "notes": (Note(HOSTILE, HOSTILE),),
    }
    run.write_result("a", replace(robust("base", (52, 16, 1, 0), 64), **evil))
    values = json.loads(json.dumps(to_builtins(audit())).replace("cifar10-resnet", HOSTILE.replace('"', '\\"')))
    write_values(tmp_path / "run", "audit", "audit", {**values, "sentence": HOSTILE})
    write_values(tmp_path / "run", "c", "certify", certificate(HOSTILE, (3, 2)))
    (tmp_path / "run/environment.json").write_text(
        json.dumps({"environments": [{HOSTILE: HOSTILE, "command": HOSTILE}]})
    )
    tags = Tags(write_report(tmp_path / "run").read_text()).found
    assert sum(tag == "script" for tag, _ in tags) == 1
    assert not any("onerror" in attributes for _, attributes in tags)
    assert not any(tag == "img" for tag, _ in tags)


def test_a_picture_that_is_no_png_is_refused(tmp_path):
    full_run(tmp_path)
    path = tmp_path / "results/gallery.json"
    values = json.loads(path.read_text())
    values["items"][0]["clean"] = '"><script>'
    path.write_text(json.dumps(values))
    report = build_report(tmp_path)
    assert "gallery" not in names(report)
    assert "'clean' must be a PNG" in report.problems[0]


def test_the_page_asks_for_nothing_outside_itself(tmp_path):
    for tag, attributes in Tags(write_report(full_run(tmp_path / "run")).read_text()).found:
        for name in ("src", "href", "action", "data"):
            target = attributes.get(name) or "#"
            assert target.startswith(("#", "data:")), (tag, target[:80])
        assert "style" not in attributes  # the content policy would refuse it


def test_the_waterfall_adds_up(tmp_path):
    table = next(t for t in build_report(full_run(tmp_path / "run")).tables if t.name == "attacks")
    counts: dict[str, list[Any]] = {
        column.name: [row[place] for row in table.rows] for place, column in enumerate(table.columns)
    }
    assert counts["base: broken"] == [52, 16, 1, 0]
    assert counts["forged: broken"] == [44, 18, 1, 1]
    assert counts["base: robust after"][-1] == 200 - 64 - sum(counts["base: broken"])


def test_gained_and_lost_are_counted_on_the_same_images(tmp_path):
    run = RunDir.open(tmp_path)
    base, forged = robust("base", (52, 16, 1, 0), 64, seed=1), robust("forged", (44, 18, 1, 1), 63, seed=2)
    run.write_result("a", base)
    run.write_result("b", forged)
    table = next(t for t in build_report(tmp_path).tables if t.name == "accuracy")
    pairs = list(zip(base.robust, forged.robust, strict=True))
    gained = sum(f and not b for b, f in pairs)
    lost = sum(b and not f for b, f in pairs)
    assert table.rows[1][-2:] == (gained, lost)
    assert gained - lost == sum(forged.robust) - sum(base.robust)


def test_a_comparison_names_the_attack_of_the_evaluations_that_it_is_of(tmp_path):
    tables = {table.name: table for table in build_report(full_run(tmp_path / "run")).tables}
    assert tables["paired"].rows[0][:3] == ("base and forged", "autoattack, linf 8/255", 200)
    assert [row[0] for row in tables["audit-paired"].rows][1] == "non-adaptive: fast"


def test_a_certification_without_a_curve_does_not_stop_the_page(tmp_path):
    RunDir.open(tmp_path).write_result("c", certificate("base", ()))
    assert "Certified" not in write_report(tmp_path).read_text()


def test_sweeps_over_eps_have_a_panel_per_attack(tmp_path):
    write_values(tmp_path, "sweep", "sweep", sweep())
    figure, notes = build_report(tmp_path).sections[0].blocks
    assert len(notes.items) == 1
    assert [chart.title for chart in figure.charts] == ["fgsm", "pgd", "cw"]
    assert figure.legend == (("base", "base"), ("forged", "forged"))


def test_several_runs_are_side_by_side_before_their_own_pages(tmp_path):
    report = build_report(full_run(tmp_path / "one"), full_run(tmp_path / "two", "real"))
    assert names(report) == ["runs", *ALL, *ALL]
    verdicts = report.tables[0]
    assert [row[:2] for row in verdicts.rows] == [("one", "not real"), ("two", "real")]
    assert len({table.name for table in report.tables}) == len(report.tables)


def test_the_page_goes_into_the_first_run_or_where_it_is_asked_to(tmp_path):
    run = full_run(tmp_path / "run")
    assert write_report(run) == run / "report.html"
    assert write_report(run, out=tmp_path / "new/page.html").exists()


def test_a_report_of_nothing_is_an_error():
    with pytest.raises(InputError, match="at least one run"):
        build_report()


def test_the_same_run_gives_the_same_bytes(tmp_path):
    run = full_run(tmp_path / "run")
    assert write_report(run).read_bytes() == write_report(run, out=tmp_path / "again.html").read_bytes()


def test_the_command_is_the_recorded_one_or_is_put_together_from_the_results(tmp_path):
    run = RunDir.open(tmp_path / "run")
    run.write_result("a", robust("forged", (44, 18, 1, 1), 63))
    assert command_of(tmp_path / "run") == (
        "lipforge evaluate cifar10-resnet --recipe recipe.json --data cifar10:test --limit 200 --attack autoattack "
        "--norm linf --eps 8/255 --seed 0 --run run"
    )
    run.write_result("demo", demo(model="my model", count=12))
    assert command_of(tmp_path / "run") == "lipforge demo --model 'my model' --count 12 --out run"
    (tmp_path / "run/environment.json").write_text('{"environments": [{"torch": "2", "command": "lipforge x"}]}')
    assert command_of(tmp_path / "run") == "lipforge x"


def command_of(path):
    return build_report(path).sections[-1].blocks[0].text


def test_a_verdict_that_begins_with_a_number_becomes_a_sentence(tmp_path):
    found = replace(audit("undecided"), sentence="undecided: +0.0 points [-1.0, +1.0] under the union of all attacks")
    write_values(tmp_path, "audit", "audit", found)
    (verdict,) = build_report(tmp_path).sections[0].blocks
    assert verdict.sentence == "The difference is +0.0 points [-1.0, +1.0] under the union of all attacks"


def test_brackets_are_tabled_and_compared(tmp_path):
    (section,) = [one for one in build_report(full_run(tmp_path / "run")).sections if one.name == "bracket"]
    table, compared = section.blocks
    assert [row[0] for row in table.table.rows] == ["base", "forged"]
    assert [row[-1] for row in table.table.rows] == [50, 60]
    assert "the brackets overlap" in compared.items[0]


def test_corruptions_are_drawn_over_severity_and_compared_by_corruption(tmp_path):
    (section,) = [one for one in build_report(full_run(tmp_path / "run")).sections if one.name == "corrupt"]
    figure, grid, compared, notes = section.blocks
    base, forged = figure.charts[0].series
    assert [(point.x, point.y) for point in base.points] == [(0, 0.75), (1, 0.55), (3, 0.35), (5, 0.15)]
    assert forged.points[1].y == pytest.approx(0.57)
    assert figure.table.texts()[-1][1].startswith("35.0 [")
    assert grid.table.texts()[0][0] == "fog"
    assert grid.table.texts()[0][-2:] == ["12", "0"]  # 4 images at 3 severities
    assert compared.items[0].startswith("forged against base: corrupted +2.0")
    assert "frost is not the published one" in notes.items[0]


def test_a_curve_is_drawn_with_its_band_and_compared(tmp_path):
    (section,) = [one for one in build_report(full_run(tmp_path / "run")).sections if one.name == "curve"]
    figure, compared, notes = section.blocks
    base, forged = figure.charts[0].series
    assert (base.name, forged.name) == ("base", "forged")
    assert base.points[0].y == 0.75
    assert base.points[0].interval == pytest.approx((0.75 - 0.0960, 0.75 + 0.0960), abs=1e-4)  # sqrt(ln 40 / 400)
    assert [point.y for point in base.points] == sorted((point.y for point in base.points), reverse=True)
    assert compared.items[0].startswith("forged against base: area +")
    assert "eps larger on" in compared.items[0]
    assert len(notes.items) == 2
    assert figure.table.texts()[0][0] == "base"
