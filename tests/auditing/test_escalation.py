"""No claim without a clean bill: who is in doubt, what that does to a verdict, and a net in disguise."""

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from lipforge.attacks import APGD, PGD
from lipforge.auditing import Plan, audit, escalation
from lipforge.auditing.escalation import Escalation, black_box, clear, doubts, from_afar, merged, predicted
from lipforge.auditing.pairs import pair_of
from lipforge.auditing.plan import AVERAGED, DISTILLED, FULL, NON_ADAPTIVE, STRAIGHT, YOURS
from lipforge.auditing.verdict import Decision, decide
from lipforge.data import load_data
from lipforge.errors import ModelError
from lipforge.models import load_model
from lipforge.runs import Shard
from lipforge.types import Threat
from tests.attacks.oracles import small_images, small_net
from tests.auditing.test_verdict import outcomes

SHORT = APGD(steps=5, loss="margin")
PLAN = Plan(non_adaptive=PGD(steps=5), adaptive=SHORT, longer=SHORT, full=PGD(steps=5), refine=3, check_images=0)


def side(masked, robust=10, count=20, **found):
    outcome = ["robust"] * robust + ["non-adaptive"] * (count - robust)
    return {"outcome": outcome, "notes": [], "masked": masked, **found}


def shard(base, candidate):
    return {"base": base, "candidate": candidate, "transferred": [True] * len(candidate["outcome"])}


HONEST, HIDDEN = side({"own gradients": 1}), side({"own gradients": 2})


def test_images_that_no_view_predicts_are_counted():
    assert predicted([side({"own gradients": 10, "BPDA identity": 1})], "candidate").passed
    failed = predicted([side({"own gradients": 10, "BPDA identity": 2})], "candidate")
    assert (failed.passed, failed.evidence) == (
        False,
        "some do on 8 of 10 robust images, at least 90 % needed (own gradients, BPDA identity)",
    )


def test_views_are_added_up_over_shards():
    assert predicted([side({"own gradients": 0}), side({"own gradients": 2})], "base").passed
    assert not predicted([side({"own gradients": 1}), side({"own gradients": 2})], "base").passed


def test_a_view_that_was_not_looked_at_in_a_shard_predicts_nothing_there():
    shards = [side({"own gradients": 0}), side({"own gradients": 9, "transferred gradients": 3})]
    found = predicted(shards, "candidate")
    assert (found.passed, found.evidence) == (
        False, "some do on 17 of 20 robust images, at least 90 % needed (own gradients, transferred gradients)",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("verdict", "gained", "lost", "rests_on"),
    [("real", 30, 4, "candidate"), ("harmful", 4, 24, "base"), ("not real", 0, 3, "base")],
)
def test_no_claim_depends_on_images_whose_gradients_look_masked(verdict, gained, lost, rests_on):
    union, shown = outcomes(500, gained, lost, 1500 - gained - lost), outcomes(500, 60, 0, 1440)
    decision = decide(union, shown, same=False, margin=0.01)
    assert decision.verdict == verdict
    spare = decision.spare[rests_on]
    assert 0 < spare < 30
    enough, many = (side({"own gradients": count}, robust=600, count=2000) for count in (spare, spare + 1))
    assert doubts([shard(enough, enough)], None, decision) == {}
    (reason,) = doubts([shard(many, many)], None, decision)[rests_on]
    assert f"some do on {599 - spare} of 600 robust images" in reason
    assert reason.endswith(f"the claim holds only if at most {spare} of the other {spare + 1} could be broken")


def test_nothing_is_masked_where_hardly_anything_is_robust():
    assert predicted([side({"own gradients": 0}, robust=0)], "base").passed is None
    few = [side({"own gradients": 2}, robust=2, count=200)]
    assert predicted(few, "base").passed is None
    assert predicted(few, "base", spare=1).passed is False  # a claim that rests on the two


def test_images_that_only_the_base_s_attack_breaks_stop_a_claim_of_a_gain():
    """Gradients may predict a model and still say nothing of where its class changes; transfer does not need them."""
    honest = side({"own gradients": 0}, robust=100, count=200)
    broken = {**shard(honest, honest), "transferred": [False] * 2 + [True] * 198}
    (reason,) = doubts([broken], None, Decision("real", ""))["candidate"]
    assert reason.startswith('check "own gradients at least as strong as transfer from the base" failed: ')
    assert doubts([broken], None, Decision("harmful", "")) == {}


@pytest.mark.parametrize(
    ("verdict", "base", "candidate", "expected"),
    [
        ("real", HIDDEN, side({"own gradients": 0}), []),
        ("real", HONEST, HIDDEN, ["candidate"]),
        ("harmful", HONEST, HIDDEN, []),
        ("harmful", HIDDEN, HONEST, ["base"]),
        ("not real", HIDDEN, HONEST, ["base"]),
        ("not real", HONEST, HIDDEN, []),
        ("no change", HIDDEN, HIDDEN, ["base", "candidate"]),
        ("undecided", HONEST, HIDDEN, ["candidate"]),
    ],
)
def test_a_verdict_rests_on_the_side_that_it_would_be_wrong_about(verdict, base, candidate, expected):
    assert list(doubts([shard(base, candidate)], None, Decision(verdict, ""))) == expected


def test_equal_functions_are_not_in_doubt():
    assert doubts([shard(HIDDEN, HIDDEN)], None, Decision("no change", ""), same=True) == {}


def test_the_list_of_the_paper_may_stop_a_claim_of_a_gain():
    measured: dict[str, Any] = {"fgsm": [False, True], "pgd": [True, True], "square": [True, True]}
    measured |= {"sweep": [[0.1, 2], [0.2, 0]], "box": True}
    honest = side({"own gradients": 0})
    found = doubts([shard(honest, honest)], measured, Decision("real", ""))
    assert found == {
        "candidate": (
            'check "iterative at least as strong as one step" failed: FGSM leaves 1 of 2, PGD with 20 steps 2',
        )
    }
    assert doubts([shard(honest, honest)], measured, Decision("harmful", "")) == {}
    black = {**measured, "pgd": [False, True], "square": [False, True]}
    (reason,) = doubts([shard(honest, honest)], black, Decision("real", ""))["candidate"]
    assert reason.startswith('check "white box at least as strong as black box" failed: ')


def test_notes_on_the_whole_model_are_doubts():
    softmax = side({"own gradients": 0}, notes=[("non-adaptive", {"kind": "softmax", "text": "looks like a softmax"})])
    (reason,) = doubts([shard(HONEST, softmax)], None, Decision("real", ""))["candidate"]
    assert "looks like a softmax" in reason
    square = [("non-adaptive", {"kind": "square", "text": "were broken by Square", "count": 2, "total": 20})]
    found = doubts([shard(HONEST, side({"own gradients": 0}, notes=square))], None, Decision("real", ""))
    assert "2 of 20 images were broken by Square" in found["candidate"][0]


def test_what_does_not_apply_is_no_doubt():
    broken = side({"own gradients": 0}, robust=0)
    assert doubts([shard(broken, broken)], None, Decision("undecided", "")) == {}


def test_what_the_last_attack_breaks_beyond_a_point_is_a_doubt():
    def sides(broken, alone, both):
        base = ["AutoAttack"] * broken + ["robust"] * (alone + both)
        candidate = ["square"] * (broken + alone) + ["robust"] * both
        return [shard({"outcome": base}, {"outcome": candidate})]

    assert black_box(sides(1, 9, 90), "base").passed
    assert not black_box(sides(2, 8, 90), "base").passed  # 2 % of all
    assert black_box(sides(2, 18, 380), "base").passed
    assert not black_box(sides(3, 17, 380), "base").passed  # 15 % of those that it attacked
    late = {**HONEST, "outcome": ["robust"] * 18 + ["AutoAttack"] * 2}
    (reason,) = doubts([shard(late, late)], None, Decision("harmful", ""))["base"]
    assert reason.startswith(
        'check "AutoAttack adds nothing on the base" failed: of the 2 images that decide it breaks 2'
    )


def test_a_claim_in_doubt_is_unreliable_and_says_what_it_would_be():
    found = clear(Decision("real", "real: it gains"), {"candidate": ('check "x" failed: y',)})
    assert found.verdict == "unreliable"
    assert found.sentence == (
        'unreliable: it would be real, it gains, but gradients of the candidate look masked: check "x" failed: y'
    )
    assert clear(Decision("real", "real: it gains"), {}).verdict == "real"


def test_what_further_attacks_found_is_added_to_a_shard():
    def spent(outcome, number):
        counts = {"forwards": number, "backwards": [number, 0], "gradients": {f"a{number}": number}}
        counts |= {"notes": [("a", number)], "masked": {"own gradients": number}, "always_early_stopped": 2}
        counts["early_stopped"] = {f"a{number}": [0, 1] if number == 1 else []}
        return {"outcome": outcome, **counts}

    before = {**shard(spent(["robust", "pgd"], 1), spent(["robust", "robust"], 1)), "same": False}
    before["seconds"] = 3.0
    after = {**shard(spent(["b", "pgd"], 2), spent(["robust", "b"], 2)), "seconds": 0.5}
    found = merged(before, after)
    assert found["base"]["outcome"] == ["b", "pgd"]
    assert (found["base"]["forwards"], found["base"]["backwards"]) == (3, [3, 0])
    assert found["candidate"]["gradients"] == {"a1": 1, "a2": 2}
    assert found["candidate"]["masked"] == {"own gradients": 2}
    assert found["base"]["notes"] == [("a", 1), ("a", 2)]
    assert found["base"]["early_stopped"] == {"a1": [], "a2": []}
    assert found["candidate"]["early_stopped"] == {"a1": [0], "a2": []}, "the second image is not robust any more"
    assert (found["base"]["always_early_stopped"], found["candidate"]["always_early_stopped"]) == (0, 1)
    assert (found["seconds"], found["same"]) == (3.5, False)
    forgot = {**shard(spent(["robust", "robust"], 2), spent(["robust", "b"], 2)), "seconds": 0.5}
    assert merged(before, forgot)["base"]["outcome"] == ["robust", "pgd"], "broken stays broken"


def test_attacks_from_far_away_that_break_a_tenth_of_the_gained_images_stop_a_claim():
    def sides(broken, gained, attacked):
        candidate = ["RayS"] * (broken // 2) + ["boundary walk"] * (broken - broken // 2) + ["robust"] * gained
        ran = {"outcome": candidate, "gradients": {"boundary walk": 40, "RayS": 0}}
        found = shard(side({}) | {"outcome": ["pgd"] * (broken + gained)}, side({"own gradients": 0}) | ran)
        return found | {"from_afar": attacked}

    assert from_afar([sides(0, 9, attacked=0)]).passed is None
    assert from_afar([sides(1, 9, attacked=10)]).passed
    assert from_afar([sides(3, 47, attacked=32)]).passed
    assert not from_afar([sides(2, 48, attacked=10)]).passed, "images that were gained later were not attacked"
    failed = from_afar([sides(4, 46, attacked=32)])
    assert (failed.passed, failed.evidence) == (
        False, "of 32 gained images 4 are broken: 2 by boundary walk and 2 by RayS",
    )  # fmt: skip
    for verdict in ("real", "undecided"):
        (reason,) = doubts([sides(4, 46, attacked=32)], None, Decision(verdict, ""))["candidate"]
        assert reason.startswith('check "attacks that start far away add nothing" failed: ')


class Rounding(nn.Module):
    """Its gradient is 0 everywhere, so that gradients predict it on no machine."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x):
        return self.net((255 * x).round() / 255)


@pytest.fixture
def escalating(monkeypatch):
    """Both rounds on two images, of which one decides, of a net and of the same net with a rounding; and who was
    distilled on whom. The copy is always wrong."""
    net, made = small_net(), list[Any]()
    candidate = Rounding(net).eval()

    def copied(student, teacher, *_, **__):
        made.append((student, teacher))
        return lambda images: -net(images)

    monkeypatch.setattr(escalation, "distilled", copied)
    x, y = small_images(net, 2)
    further = Escalation(pair_of(net, candidate), lambda at: x[at], 2, Threat("linf", 1e-6), PLAN)
    before = shard({"outcome": ["robust", "robust"]}, {"outcome": ["robust", "non-adaptive"]})
    first, full = (partial(each, Shard(x, y, torch.arange(2)), before, print) for each in (further.first, further.full))
    return first, full, made, (net, candidate)


def test_the_first_round_distils_each_side_once_and_the_last_none(escalating):
    first, full, made, (base, candidate) = escalating
    assert full()["seconds"] > 0
    assert made == []
    assert first()["seconds"] > 0
    first()
    assert made == [(candidate, base), (base, candidate)]


def test_the_first_round_attacks_what_is_robust_by_every_gradient_and_the_side_decides(escalating):
    found = escalating[0]()
    assert found["base"]["outcome"] == ["robust", "robust"], "the distilled copy is wrong, but it is not the side"
    assert found["candidate"]["outcome"] == ["robust", "non-adaptive"]
    assert list(found["base"]["gradients"]) == [AVERAGED, DISTILLED]
    assert list(found["candidate"]["gradients"]) == [AVERAGED, STRAIGHT, DISTILLED]
    assert found["candidate"]["gradients"][AVERAGED] == 20 * 16, "20 steps of 16 neighbours on one image"
    assert STRAIGHT in found["candidate"]["masked"]
    assert STRAIGHT not in found["base"]["masked"]


def test_the_last_round_is_for_the_images_that_decide(escalating):
    found = escalating[1]()
    assert found["base"]["gradients"] == {FULL: 5}, "one image"
    assert found["base"]["backwards"] == [0, 0], "it does not count as effort spent on a side"
    assert found["candidate"]["backwards"] == [0, 0]
    assert found["candidate"]["outcome"] == ["robust", "non-adaptive"]


class Wiggle(nn.Module):
    """A net behind a ripple, which a signed step cannot see through."""

    def __init__(self, net, amplitude=0.25 / 255, frequency=20000):
        super().__init__()
        self.net, self.amplitude, self.frequency = net, amplitude, frequency

    def forward(self, x):
        return self.net(x + self.amplitude * torch.sin(self.frequency * x))


def test_a_gain_behind_masked_gradients_is_attacked_harder_and_never_called_real():
    """Against a base that is always wrong it gains, whatever the attacks; how much of it is real nobody can say."""
    net = small_net()
    x, y = small_images(net, 40)

    def wrong(images):
        return -net(images)

    report = audit(wrong, Wiggle(net).eval(), (x, y), Threat("linf", 0.002), plan=PLAN)
    assert report.union.interval[0] > 0
    assert (report.verdict, report.exit_code) == ("unreliable", 4)
    assert report.sentence.startswith("unreliable: it would be real")
    assert [row.attack for row in report.rows][-3:] == [AVERAGED, DISTILLED, FULL]  # it does not round
    assert any(check.startswith("gradients predict the candidate: some do on ") for check in report.failed_checks)
    assert audit(wrong, net, (x, y), Threat("linf", 0.002), plan=PLAN).verdict == "real"


class Detached(nn.Module):
    """A net that gives no gradient with respect to its images at all."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x):
        return self.net(x.detach())


def test_a_model_without_gradients_is_unreliable_unless_a_surrogate_predicts_it():
    net = small_net()
    data, threat = small_images(net, 40), Threat("linf", 0.002)

    def wrong(images):
        return -net(images)

    def crafted(model, images, labels, threat):
        return PGD(steps=10)(net, images, labels, threat=threat)

    alone = audit(wrong, Detached(net).eval(), data, threat, plan=PLAN)
    assert (alone.verdict, alone.candidate_outcome.count(NON_ADAPTIVE)) == ("unreliable", 0)
    assert any(check.startswith("gradients predict the candidate: some do on ") for check in alone.failed_checks)
    assert any("gradient of exactly 0" in str(note) for note in alone.notes)
    mine = audit(wrong, Detached(net).eval(), data, threat, plan=PLAN, attack=crafted)
    assert (mine.verdict, mine.candidate_outcome.count(YOURS) > 0) == ("unreliable", True)
    seen_through = audit(wrong, Detached(net).eval(), data, threat, plan=PLAN, surrogates={"inside": net})
    assert (seen_through.verdict, seen_through.candidate_outcome.count("inside") > 0) == ("real", True)
    base = audit(Detached(net).eval(), wrong, data, threat, plan=PLAN)
    assert base.verdict == "unreliable", "a loss rests on the base"


def test_a_random_model_is_refused():
    net = load_model("cifar10-resnet-natural")
    x, y = load_data("cifar10-sample").batch(range(2))

    class Noisy(nn.Module):
        def forward(self, images):
            return net(images + 0.05 * torch.randn_like(images))

    with pytest.raises(ModelError, match="candidate has random outputs, which cannot be judged"):
        audit(net, Noisy().eval(), (x, y), Threat("linf", "2/255"), plan=PLAN)


def test_an_attack_of_the_user_counts_inside_the_threat_only():
    net = load_model("cifar10-resnet-natural")
    x, y = load_data("cifar10-sample").batch(range(6))
    other = load_model("cifar10-resnet")

    def follow(model, images, labels, threat):
        return PGD(steps=10)(other, images, labels, threat=Threat("linf", 2 * threat.eps))

    weak = PGD(steps=1, step_size=1e-6, random_start=False)
    plan = replace(PLAN, non_adaptive=weak, adaptive=weak, longer=weak)
    report = audit(net, other, (x, y), Threat("linf", "8/255"), plan=plan, attack=follow)
    assert "your attack" in [row.attack for row in report.rows]
    assert any("outside the threat" in str(note) for note in report.notes)
