"""What an audit makes of the outcomes of its shards: when it stops, what it adds up and what it does not claim."""

from dataclasses import replace

import pytest
import torch

from lipforge.attacks import FGSM, Boundary, RayS
from lipforge.attacks.checks import MASKED
from lipforge.auditing import audit
from lipforge.auditing.gathering import gather
from lipforge.batching import as_data
from lipforge.records import to_builtins
from lipforge.results import Check, Note
from lipforge.runs import RunDir
from lipforge.runs.identity import image_digests
from lipforge.search.choose import choose_ratio
from lipforge.types import Threat
from tests.auditing.quick import PLAN, QUICK, THREAT, facts
from tests.nets import ResidualNet, seeded

ABOUT = {
    "model": "m",
    "data": "d",
    "threat": "linf 8/255",
    "norm": "linf",
    "eps": 8 / 255,
    "seed": 0,
    "planned": 4,
    "non_adaptive_attack": "pgd",
    "margin": 0.01,
}


def zero(count):
    return Note("zero_gradient", "had a gradient of exactly 0", count, 2)


def summary(notes, early_stopped):
    return {
        "outcome": ["robust", "mine"],
        "notes": notes,
        "forwards": 9,
        "backwards": [40, 30],
        "gradients": {"non-adaptive": 20, "mine": 50},
        "early_stopped": {"non-adaptive": [0], "mine": [0] * early_stopped},
        "always_early_stopped": early_stopped,
        "masked": {"own gradients": 0},
    }


def gathered(flag=zero):
    first, second = (
        {
            "base": summary([("mine", Note("odd", "odd"))], 0),
            "candidate": summary([("non-adaptive", flag(number)), ("mine", zero(1))], 1),
            "same": False,
            "transferred": [True, True],
            "double": {"decide": 0, "flips": 0, "broken": 0},
            "seconds": 1.0,
        }
        for number in (1, 2)
    )
    return gather(
        to_builtins([first, second]),
        None,
        [Check("certified", None, "")],
        ABOUT,
        PLAN.stages(["mine"]),
        PLAN,
    )


def test_the_notes_of_an_audit_do_not_advise_to_run_an_audit():
    assert "run lipforge audit" in MASKED
    found = gathered(lambda count: Note("masked_gradients", MASKED, count, 2))
    assert any("gradients are probably masked" in str(note) for note in found.notes)
    assert any("gradients are probably masked" in check for check in found.failed_checks)
    assert "lipforge audit" not in str(found)


def test_notes_of_every_stage_are_kept_and_added_up_over_shards():
    assert [str(note) for note in gathered().notes] == [
        "base, mine: odd",
        "candidate, non-adaptive: 3 of 4 images had a gradient of exactly 0",
        "candidate, mine: 2 of 4 images had a gradient of exactly 0",
    ]


def one_of_50_gained(pair, shard, prepared, **settings):
    """The outcomes of a candidate that keeps every fiftieth image robust which the base does not."""

    def side(outcome):
        spent = {
            "forwards": 1,
            "backwards": [1] * len(outcome),
            "gradients": {},
            "early_stopped": {},
            "masked": {"a": 0},
        }
        return {"outcome": outcome, "notes": [], "always_early_stopped": 0, **spent}

    ids = shard.ids.tolist()
    words = {"base": ["float64"] * len(ids), "candidate": ["float64" if one % 50 else "robust" for one in ids]}
    found = {"same": False, "transferred": [True] * len(ids), "double": None, "seconds": 1.0}
    return {**{name: side(outcome) for name, outcome in words.items()}, **found}


@pytest.fixture
def asked(monkeypatch):
    """The first images of the shards that were attacked, by the made-up attack above."""
    seen = []

    def attack(pair, shard, prepared, **settings):
        seen.append(int(shard.ids[0]))
        return one_of_50_gained(pair, shard, prepared)

    monkeypatch.setattr("lipforge.auditing.run.attack_shard", attack)
    return seen


def many_images(count):
    return torch.zeros(count, 3, 8, 8), torch.zeros(count, dtype=torch.int64)


def audited(count, run=None, **settings):
    models = seeded(ResidualNet), seeded(ResidualNet, 1)
    return audit(*models, many_images(count), THREAT, plan=replace(QUICK, **settings), run=run)


def test_an_audit_stops_at_the_first_look_that_decides_and_says_so(asked):
    found = audited(1250)
    assert (found.verdict, found.count, found.planned) == ("real", 500, 1250)
    assert (len(found.base_outcome), found.union.count, found.union.gained) == (500, 500, 10)
    assert found.sentence.endswith("; decided after 500 of 1,250 images")
    assert asked == [0, 100, 200, 300, 400]


def test_a_gain_is_claimed_only_after_an_attack_that_sees_nothing_but_the_class(asked, tmp_path):
    run = RunDir.open(tmp_path)
    found = audited(1250, run, hard_label=RayS(queries=60))
    assert "RayS" in [row.attack for row in found.rows]
    assert found.count == 500
    assert found.candidate_outcome.count("RayS") > 1
    assert found.verdict == "unreliable"
    assert 'check "attacks that start far away add nothing" failed: ' in found.sentence
    assert facts(audited(1250, run, hard_label=RayS(queries=60))) == facts(found)
    models, plan = (seeded(ResidualNet), seeded(ResidualNet, 1)), replace(QUICK, hard_label=RayS(queries=60))
    assert audit(*models, many_images(1250), Threat("l2", 0.5), plan=plan).verdict == "real", "it has no form in l2"
    plan = replace(plan, boundary=Boundary(steps=5))
    walked = audit(*models, many_images(1250), Threat("l2", 0.5), plan=plan)
    assert "RayS" not in [row.attack for row in walked.rows]
    assert walked.candidate_outcome.count("boundary walk") > 1
    assert walked.verdict == "unreliable"


def test_a_gain_that_only_harder_attacks_bring_about_is_attacked_by_class_too(monkeypatch):
    """The base looks as robust as the candidate until its rounding is seen through: then a gain would be claimed."""

    def hidden(pair, shard, prepared, **settings):
        found = one_of_50_gained(pair, shard, prepared)
        found["base"] = {**found["base"], "outcome": list(found["candidate"]["outcome"]), "masked": {"a": 2}}
        return found

    hit = []

    class Seen(Harder):
        def first(self, shard, before, watch):
            return one_of_50_gained(None, shard, None)

        def before_gain(self, shard, before, watch):
            hit.append(shard)
            return before

    monkeypatch.setattr("lipforge.auditing.run.attack_shard", hidden)
    monkeypatch.setattr("lipforge.auditing.run.Escalation", Seen)
    found = audited(500, hard_label=RayS(queries=5))
    assert len(hit) == 5
    assert found.verdict == "real"
    assert "RayS" in [row.attack for row in found.rows]


def test_an_undecided_audit_looks_again_after_500_more_and_the_last_block_may_be_shorter(asked):
    assert audited(400).count == 400
    assert audited(1250, margin=0.021).count == 1250
    assert "decided after" not in audited(1250, margin=0.021).sentence


def test_an_audit_that_stopped_can_be_resumed_without_work_or_go_on_to_all_images(asked, tmp_path):
    run = RunDir.open(tmp_path)
    first = audited(1000, run)
    assert facts(audited(1000, run)) == facts(first)
    assert len(asked) == 5
    whole = audited(1000, run, stop_early=False)
    assert (whole.count, whole.union.gained, len(asked)) == (1000, 20, 10)
    assert "decided after" not in whole.sentence
    assert facts(audited(1000, run)) == facts(first), "what lies beyond the look changes nothing"


class Harder:
    """Further attacks that leave every second image robust which the candidate gained, and no doubt about it."""

    def __init__(self, *about):
        pass

    def first(self, shard, before, watch):
        found = one_of_50_gained(None, shard, None)
        words = zip(shard.ids.tolist(), before["candidate"]["outcome"], strict=True)
        found["candidate"]["outcome"] = ["distilled copy" if one % 100 == 50 else word for one, word in words]
        return found


Harder.full = Harder.first  # type: ignore[attr-defined]  # the same again


def test_what_harder_attacks_leave_undecided_says_where_it_stopped_and_how_to_go_on(monkeypatch):
    def masked(pair, shard, prepared, **settings):
        found = one_of_50_gained(pair, shard, prepared)
        found["candidate"]["masked"] = {"a": 2}
        return found

    monkeypatch.setattr("lipforge.auditing.run.attack_shard", masked)
    monkeypatch.setattr("lipforge.auditing.run.Escalation", Harder)
    found = audited(1250)
    assert (found.verdict, found.count, found.union.gained) == ("undecided", 500, 5)
    assert "images would probably decide it; it stopped after 500 of 1,250 images, where it looked real" in (
        found.sentence
    )
    assert found.sentence.endswith("; --all-images (stop_early=False) also attacks the other 750")
    assert found.seconds == 10, "five shards, attacked once and once more"
    monkeypatch.setattr(Harder, "first", lambda self, shard, before, watch: masked(None, shard, None))
    monkeypatch.setattr(Harder, "full", Harder.first)
    unreliable = audited(1250)
    assert unreliable.verdict == "unreliable"
    assert unreliable.sentence.endswith("; stopped after 500 of 1,250 images")


def test_every_rank_goes_by_the_results_that_the_first_one_read(asked, tmp_path, report, monkeypatch):
    other = {f"audit__{name}": replace(report, union=replace(report.union, p_value=0.9)) for name in "abc"}
    monkeypatch.setattr("lipforge.auditing.run.from_first", lambda own: other)
    run = RunDir.open(tmp_path)
    for name in "defgh":
        run.write_result(f"audit__{name}", other["audit__a"])
    assert "4 audits in this run" in audited(500, run).sentence


def test_other_audits_of_the_run_make_a_claim_harder_so_the_audit_goes_on(asked, tmp_path, report):
    """After 500 images p = 0.016, which four audits correct to 0.06; after 1,000 it is far smaller."""
    run = RunDir.open(tmp_path)
    for name in ("a", "b", "c"):
        run.write_result(f"audit__{name}", replace(report, union=replace(report.union, p_value=0.9)))
    found = audited(500, run)
    assert (found.verdict, found.union.p_value) == ("undecided", pytest.approx(0.016, abs=0.001))
    assert "4 audits in this run, and after Holm's correction for that p = 0.064" in found.sentence
    assert facts(audited(500, run)) == facts(found), "it does not count itself"
    again = RunDir.open(tmp_path / "longer")
    for name in ("a", "b", "c"):
        again.write_result(f"audit__{name}", run.read_result(f"audit__{name}"))
    assert (audited(1500, again).verdict, audited(1500, again).count) == ("real", 1000)


def test_a_gain_on_images_of_the_runs_search_is_not_claimed(asked, tmp_path):
    run, (x, y) = RunDir.open(tmp_path), many_images(500)
    x[:, 0, 0, 0] = torch.linspace(0, 1, 500)
    audited_on = (seeded(ResidualNet), seeded(ResidualNet, 1), (x, y), THREAT)
    search(x[400:450].flip(0), run, (x + 2) / 3)
    assert audit(*audited_on, plan=QUICK, run=run).verdict == "real", "the search saw other images"
    search(x[400:450].flip(0), run)
    found = audit(*audited_on, plan=QUICK, run=run)
    assert found.verdict == "undecided"
    assert "it was chosen on 50 of these images" in found.sentence
    again = RunDir.open(tmp_path / "longer")
    again.write_result("search", run.read_result("search"))
    more = audit(*audited_on[:2], (x.repeat(2, 1, 1, 1), y.repeat(2)), THREAT, plan=QUICK, run=again)
    assert more.sentence.endswith("; stopped after 500 of 1,000 images"), "more images would not help"


def search(x, run, seen=None):
    """A search of the run that saw `seen`, or `x`."""
    seen = x if seen is None else seen
    model = seeded(ResidualNet)
    made = choose_ratio(
        lambda setting: {"only": model}, (x[:2], torch.zeros(2, dtype=torch.int64)), attack=FGSM(), threat=THREAT,
        metric="non-adaptive", ratios=[0.5],
    )  # fmt: skip
    assert made.images == image_digests(as_data((x[:2], torch.zeros(2, dtype=torch.int64))))
    run.write_result("search", replace(made, images=image_digests(as_data((seen, torch.zeros(len(seen)).long())))))


def test_only_notes_of_the_non_adaptive_attack_on_the_candidate_are_flags():
    (flags,) = [check for check in gathered().checks if check.name == "no flag of the non-adaptive attack"]
    assert (flags.passed, flags.evidence) == (False, "3 of 4 images had a gradient of exactly 0")


def test_early_stopped_images_are_counted_by_stage_and_over_all_gradient_attacks():
    found = gathered()
    assert (found.base_early_stopped, found.candidate_early_stopped) == (0, 2)
    counts = {row.attack: (row.base_early_stopped, row.candidate_early_stopped) for row in found.rows}
    assert (counts["non-adaptive"], counts["mine"], counts["float64"]) == ((2, 2), (0, 2), (0, 0))
    assert "robust images that every gradient attack stopped early: base 0 of 2, candidate 2 of 2" in str(found)
