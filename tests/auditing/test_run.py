"""The audit's controls, on the bundled robust model and real images: pairs whose verdict is known beforehand."""

import copy
from dataclasses import replace

import pytest
import torch
from torch import nn

from lipforge.attacks import PGD, attack_text, fast
from lipforge.auditing import audit, audit_plan
from lipforge.certification import certify
from lipforge.data import load_data
from lipforge.errors import InputError, ModelError, RunError, SiteError
from lipforge.forge import count_zeros, fold_, forge_, forged, load_fold, plain, set_ratio_
from lipforge.models import load_model
from lipforge.runs import RunDir
from lipforge.types import Threat
from tests.auditing.quick import PLAN, QUICK, THREAT, facts, small
from tests.nets import ResidualNet, images, seeded


@pytest.fixture(scope="module")
def robust():
    return load_model("cifar10-resnet")


def real_images(count):
    return load_data("cifar10-sample:test", limit=count)


class Masked(nn.Module):
    """Quantised images, with a gradient of 0 almost everywhere, and logits so large that softmax saturates."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return 1000 * self.inner((x * 63).round() / 63)


def damaged(model):
    """A copy with noise on every weight, as large as the weights."""
    copied, generator = copy.deepcopy(model), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in copied.parameters():
            if weight.ndim > 1:
                weight += weight.std() * torch.randn(weight.shape, generator=generator)
    return copied


def test_a_ratio_of_0_is_no_change(robust):
    model = copy.deepcopy(robust)
    forge_(model, load_data("cifar10-sample:train", limit=16), ratio=2**-6)
    set_ratio_(model, 0.0)
    report = audit(model, real_images(6), Threat("linf", "8/255"), plan=QUICK)
    assert report.verdict == "no change"
    assert report.base_outcome == report.candidate_outcome
    assert report.exit_code == 0


def test_a_masked_defence_is_not_real(robust):
    """So few images exclude only a large gain."""
    plan = replace(QUICK, margin=0.2)
    report = audit(robust, Masked(robust).eval(), real_images(40), Threat("linf", "8/255"), plan=plan)
    assert report.non_adaptive.difference > 0.2
    assert report.verdict == "not real"
    assert report.exit_code == 1
    assert any("gradient of exactly 0" in check for check in report.failed_checks)


def test_damaged_weights_are_harmful(robust):
    report = audit(robust, damaged(robust), real_images(30), Threat("linf", "2/255"), plan=QUICK)
    assert report.verdict == "harmful"
    assert report.exit_code == 1


def test_adversarial_training_is_real(robust):
    report = audit(load_model("cifar10-resnet-natural"), robust, real_images(16), Threat("linf", "4/255"), plan=QUICK)
    assert report.verdict == "real"
    assert report.exit_code == 0


@pytest.mark.slow
def test_the_plan_that_comes_by_itself_finds_adversarial_training_and_fails_no_check(robust):
    """Too few images for a verdict of real, but every attack and check of the default plan runs on them."""
    report = audit(load_model("cifar10-resnet-natural"), robust, real_images(5), Threat("linf", "4/255"))
    assert report.non_adaptive_attack == "fast"
    assert report.rows[-1].base == 0 < report.rows[-1].candidate
    assert (report.union.gained, report.union.lost) == (report.rows[-1].candidate, 0)
    assert report.failed_checks == ()
    assert sum(check.passed is True for check in report.checks) == 10
    gradients = {row.attack: row.candidate_gradients for row in report.rows}
    assert min(gradients[name] for name in ("non-adaptive", "own gradients", "longer restarts")) > 0
    assert gradients["APGD-T"] == 900 * report.union.gained, "with AutoAttack's budget"
    assert report.rows[1].candidate_early_stopped > 0
    assert report.candidate_early_stopped == 0, "every robust image decides, and APGD-T stops early on none"


def test_the_union_only_falls_from_row_to_row_and_ends_at_what_the_verdict_compares(report):
    for side in ("base", "candidate"):
        left = [getattr(row, side) for row in report.rows]
        assert left == sorted(left, reverse=True)
        assert left[-1] == getattr(report, f"{side}_outcome").count("robust")
    last = report.rows[-1]
    assert (report.union.base_accuracy, report.union.candidate_accuracy) == (last.base / 12, last.candidate / 12)
    assert [row.attack for row in report.rows][:3] == ["clean", "non-adaptive", "transfer"]
    assert report.non_adaptive.base_accuracy == report.rows[1].base / 12
    assert report.clean.candidate_accuracy == report.rows[0].candidate / 12 == 1


@pytest.mark.slow
def test_the_standard_plan_with_square_runs_to_the_end_in_l2():
    """All but its AutoAttack, whose 5,000 queries of Square would take longer than the rest."""
    model, (x, y) = small(classes=2)  # one target: each takes as long as everything else
    plan = replace(audit_plan("standard", classes=2, square=40), non_adaptive=fast())
    report = audit(model, (x[:1], y[:1]), Threat("l2", 0.05), plan=plan)
    assert "square" in [row.attack for row in report.rows]
    assert (report.base_early_stopped, report.candidate_early_stopped) == (0, 0)
    assert (report.norm, report.count) == ("l2", 1)
    assert 0 < report.rows[-1].candidate <= report.rows[1].candidate


def test_in_l1_every_check_runs_but_that_of_cw():
    model, data = small()
    found = audit(model, data, Threat("l1", 1.0), plan=PLAN)
    passed = {check.name: check.passed for check in found.checks}
    assert passed["CW at least as strong as transfer"] is None
    assert passed["iterative at least as strong as one step"] is not None
    assert passed["accuracy falls to 0 as eps grows"] is not None
    assert (found.norm, found.rows[-1].attack) == ("l1", "float64")


def test_both_sides_get_as_many_gradients_per_robust_image():
    model, data = small()
    report = audit(model, data, Threat("linf", 0.001), plan=PLAN)
    assert report.rows[-1].base > 0
    assert report.rows[-1].candidate > 0
    assert abs(report.base_effort.per_robust_image - report.candidate_effort.per_robust_image) < 20


def test_every_check_is_there_with_its_evidence(report):
    assert len(report.checks) == 15
    assert all(check.evidence for check in report.checks)
    assert [check.name for check in report.checks if check.passed is False] == [
        failed.split(": ")[0] for failed in report.failed_checks
    ]


def test_the_text_begins_with_the_sentence_and_holds_rows_and_checks(report):
    lines = str(report).splitlines()
    assert lines[0] == report.sentence
    assert all(any(line.startswith(row.attack) for line in lines) for row in report.rows)
    assert all(any(check.name in line for line in lines) for check in report.checks)


def weight_check(report):
    (check,) = [check for check in report.checks if "Weight" in check.name]
    return check


def test_zeros_are_never_counted_on_the_audited_images(report, tmp_path, monkeypatch):
    """A fold can come later: the run goes on with it, and what was measured without it is kept."""
    model, data = small()
    counts = count_zeros(model, images(32))
    fold = fold_(model, counts, frequency=0.5)
    fold.undo_(model)
    fold.save(tmp_path / "fold.safetensors")
    monkeypatch.setattr("lipforge.forge.fold.ZeroCounts", None)  # whoever counts now fails
    assert weight_check(report).passed is None
    run = RunDir.open(tmp_path / "run")
    without = audit(model, data, THREAT, plan=PLAN, run=run)
    monkeypatch.undo()
    shards = run.shards()
    found = audit(model, data, THREAT, plan=PLAN, run=run, fold=load_fold(tmp_path / "fold.safetensors"))
    assert weight_check(without).passed is None
    assert weight_check(found).passed is not None
    assert "at least 50 % of the time on 32 images" in weight_check(found).evidence
    assert run.shards() == shards + 1


def test_a_fold_of_another_ratio_or_pair_is_refused_before_any_attack():
    model, data = small()
    fold = fold_(model, count_zeros(model, images(32)), frequency=0.5)
    fold.undo_(model)
    with pytest.raises(InputError, match=r"fold is for audit\(model, data, threat\)"):
        audit(plain(model), forged(model), data, THREAT, fold=fold)  # type: ignore[call-overload]  # on purpose
    set_ratio_(model, 2**-4)
    with pytest.raises(InputError, match="the fold was counted at another ratio or with another recipe"):
        audit(model, data, THREAT, plan=PLAN, fold=fold)


def test_a_run_that_is_resumed_gives_the_same_report_and_keeps_its_shards(report, tmp_path):
    model, data = small()
    run = RunDir.open(tmp_path)
    audit(model, data, THREAT, plan=PLAN, run=run)
    shards = sorted((tmp_path / "shards" / "audit__linf-2over255").glob("0*.json"))
    assert len(shards) == 3
    shards[1].unlink()
    kept = {path: path.stat().st_mtime_ns for path in shards if path.exists()}
    again = audit(model, data, THREAT, plan=PLAN, run=run)
    assert facts(again) == facts(report)
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    assert run.read_result("audit__linf-2over255") == again


def test_a_run_of_another_ratio_is_refused(tmp_path):
    model, data = small()
    few = (data[0][:2], data[1][:2])
    audit(model, few, THREAT, plan=QUICK, run=RunDir.open(tmp_path))
    set_ratio_(model, 2**-4)
    with pytest.raises(RunError, match="other work under the same name"):
        audit(model, few, THREAT, plan=QUICK, run=RunDir.open(tmp_path))


def test_a_run_with_another_surrogate_of_the_same_name_is_refused(tmp_path):
    base, candidate, run = seeded(ResidualNet), seeded(ResidualNet, 1), RunDir.open(tmp_path)
    x = images(1)
    data = (x, candidate(x).argmax(dim=1))
    audit(base, candidate, data, THREAT, plan=QUICK, run=run, surrogates={"mine": seeded(ResidualNet, 2)})
    with pytest.raises(RunError, match="surrogate mine"):
        audit(base, candidate, data, THREAT, plan=QUICK, run=run, surrogates={"mine": seeded(ResidualNet, 3)})


def test_a_run_needs_to_be_told_what_a_function_is(tmp_path):
    """Two functions may have one name."""
    base, run, x = seeded(ResidualNet), RunDir.open(tmp_path), images(1)
    data = (x, base(x).argmax(dim=1))
    first, second = (seeded(ResidualNet, seed).forward for seed in (1, 2))
    with pytest.raises(InputError, match="it is needed for candidate"):
        audit(base, first, data, THREAT, plan=QUICK, run=run)
    with pytest.raises(InputError, match="needed for surrogate mine"):
        audit(base, base, data, THREAT, plan=QUICK, run=run, surrogates={"mine": first})
    audit(base, first, data, THREAT, plan=QUICK, run=run, identity={"candidate": "first"})
    with pytest.raises(RunError, match="candidate was 'first', now 'second'"):
        audit(base, second, data, THREAT, plan=QUICK, run=run, identity={"candidate": "second"})


def test_certificates_in_the_run_are_checked_and_results_of_another_format_do_no_harm(tmp_path):
    model, (x, y) = small()
    data, run = (x[:2], y[:2]), RunDir.open(tmp_path)
    for label, view in (("base", plain(model)), ("forged", forged(model))):
        certify(view, data, n0=2, n=20, alpha=0.1, run=run, label=label)
    (tmp_path / "results" / "older.json").write_text('{"kind": "certify", "format": 1}')
    report = audit(model, data, THREAT, plan=QUICK, run=run)
    assert report.checks[-1].name.startswith("certified accuracy")
    assert report.checks[-1].evidence.startswith("base and candidate: ")


def test_certificates_of_a_model_without_gradients_are_its_own(tmp_path):
    class Detached(ResidualNet):
        def forward(self, x):
            return super().forward(x.detach())

    base, candidate, run = seeded(ResidualNet), seeded(Detached, 1), RunDir.open(tmp_path)
    x = images(1)
    data = (x, candidate(x).argmax(dim=1))
    for label, model in (("base", base), ("candidate", candidate)):
        certify(model, data, n0=2, n=20, alpha=0.1, run=run, label=label)
    report = audit(base, candidate, data, THREAT, plan=QUICK, run=run)
    assert report.checks[-1].evidence.startswith("base and candidate: ")


def test_the_folded_copy_is_made_once_per_side_from_the_first_images_and_only_if_it_is_needed(tmp_path, monkeypatch):
    seen = []

    def prepared(self, model, images):
        seen.append(images)
        return model

    monkeypatch.setattr(PGD, "prepared", prepared)
    model, data = small()
    audit(model, data, THREAT, plan=PLAN, run=RunDir.open(tmp_path))
    assert len(seen) == 2
    assert all(torch.equal(images, data[0]) for images in seen)
    audit(model, data, THREAT, plan=PLAN, run=RunDir.open(tmp_path))
    assert len(seen) == 2


def test_the_plan_that_comes_by_itself_is_for_the_classes_of_the_model(tmp_path):
    """With labels of one class only, a plan for so few classes would leave out dlr and all targets but one."""
    model, (x, y) = small()
    wrong = (y[:1] == 0).long()
    audit(model, (x[:1], wrong), THREAT, run=RunDir.open(tmp_path))
    config = (tmp_path / "shards" / "audit__linf-2over255" / "config.json").read_text()
    assert "dlr" in attack_text(audit_plan(classes=10).adaptive)
    assert attack_text(audit_plan(classes=10).adaptive) in config


def test_labels_that_the_model_does_not_know_are_an_error_not_a_verdict():
    model, (x, y) = small()
    with pytest.raises(InputError, match=r"labels must lie in \[0, 10\)"):
        audit(model, (x[:2], y[:2] + 100), THREAT, plan=QUICK)


def test_a_candidate_that_gives_nan_is_an_error_not_harmful():
    _, (x, y) = small()
    broken = seeded(ResidualNet, 1)
    torch.nn.init.constant_(broken.head.weight, torch.nan)
    with pytest.raises(ModelError, match="NaN or infinite logits"):
        audit(seeded(ResidualNet), broken, (x[:2], y[:2]), THREAT, plan=QUICK)


def test_wrong_use_is_explained():
    model, data = small()
    with pytest.raises(InputError, match="audit takes"):
        audit(model, data)  # type: ignore[call-overload]  # the mistake under test
    with pytest.raises(InputError, match="surrogates are for"):
        audit(model, data, THREAT, surrogates={})  # type: ignore[call-overload]  # the mistake under test
    with pytest.raises(InputError, match="model must be a forged"):
        audit(lambda x: x, data, THREAT)  # type: ignore[call-overload]  # the mistake under test
    with pytest.raises(SiteError, match="no forged functions"):
        audit(seeded(ResidualNet), data, THREAT)
