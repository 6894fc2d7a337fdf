"""What an audit found, and what its verdicts mean."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from lipforge.results.change import Change
from lipforge.results.evaluation import ROBUST, Note
from lipforge.statistics import Comparison, holm
from lipforge.types import Norm

Verdict = Literal["real", "not real", "harmful", "no change", "undecided", "unreliable"]


@dataclass(frozen=True)
class VerdictForm:
    """How a verdict is shown everywhere: a title, a sign so that colour is not all that carries it, a tone, and the
    exit code of `lipforge audit`."""

    title: str
    exit_code: int
    sign: str
    tone: Literal["good", "bad", "doubt", "calm"]


VERDICTS: dict[Verdict, VerdictForm] = {
    "real": VerdictForm("Real gain", 0, "✓", "good"),
    "no change": VerdictForm("No change", 0, "=", "calm"),
    "not real": VerdictForm("Gain not real", 1, "✕", "bad"),
    "harmful": VerdictForm("Harmful", 1, "▼", "bad"),
    "undecided": VerdictForm("Undecided", 3, "?", "doubt"),
    "unreliable": VerdictForm("Unreliable", 4, "!", "doubt"),
}


@dataclass(frozen=True)
class Check:
    """One item of the checklist: passed, failed (False) or not applicable (None), with the numbers behind it."""

    name: str
    passed: bool | None
    evidence: str


@dataclass(frozen=True)
class AuditRow:
    """How many images are robust after this attack and all above it, the difference of the shares, and the gradients.

    `*_early_stopped` count images, robust at the end, that this attack stopped early: they were far from the boundary.
    """

    attack: str
    base: int
    candidate: int
    difference: float
    base_gradients: int
    candidate_gradients: int
    base_early_stopped: int = 0
    candidate_early_stopped: int = 0


@dataclass(frozen=True)
class Effort:
    """Passes through one side; `per_robust_image` are gradients per image that is robust at the end."""

    forwards: int
    backwards: int
    per_robust_image: float


@dataclass(frozen=True)
class AuditNote:
    """A note of one attack on one side."""

    side: str
    attack: str
    note: Note

    def __str__(self) -> str:
        return f"{self.side}, {self.attack}: {self.note}"


@dataclass(frozen=True)
class AuditReport:
    """A verdict on a candidate against its base, and everything it rests on.

    `non_adaptive` and `union` compare the two image by image, under the non-adaptive attack and under the union of all
    attacks; the verdict is about `union`. The outcomes have for each image the attack that broke it, "robust" or
    "misclassified". `*_early_stopped` count robust images that every gradient attack stopped early. `count` images were
    attacked, of `planned`: an audit may stop as soon as the verdict is decided. `*_change` is what lipforge had changed
    in each side.
    """

    kind: ClassVar[str] = "audit"
    verdict: Verdict
    sentence: str
    model: str
    data: str
    threat: str
    norm: Norm
    eps: float
    seed: int
    count: int
    non_adaptive_attack: str
    margin: float
    images_needed: int | None
    clean: Comparison
    non_adaptive: Comparison
    union: Comparison
    rows: tuple[AuditRow, ...]
    checks: tuple[Check, ...]
    base_effort: Effort
    candidate_effort: Effort
    base_outcome: tuple[str, ...]
    candidate_outcome: tuple[str, ...]
    notes: tuple[AuditNote, ...]
    seconds: float
    base_early_stopped: int = 0
    candidate_early_stopped: int = 0
    planned: int | None = None
    base_change: Change | None = None
    candidate_change: Change | None = None

    @property
    def exit_code(self) -> int:
        return VERDICTS[self.verdict].exit_code

    @property
    def failed_checks(self) -> tuple[str, ...]:
        """Name and evidence of every check that failed."""
        return tuple(f"{check.name}: {check.evidence}" for check in self.checks if check.passed is False)

    @property
    def early_stopped_text(self) -> str:
        """How many robust images every gradient attack stopped early; nothing if there are none."""
        if not self.base_early_stopped and not self.candidate_early_stopped:
            return ""
        base = f"base {self.base_early_stopped} of {self.base_outcome.count(ROBUST)}"
        candidate = f"candidate {self.candidate_early_stopped} of {self.candidate_outcome.count(ROBUST)}"
        return f"robust images that every gradient attack stopped early: {base}, {candidate}"

    def __str__(self) -> str:
        sides = f"{'base':>10} {'candidate':>10}"
        lines = [self.sentence, *(f"failed check: {check}" for check in self.failed_checks), ""]
        lines.append(f"{'% robust after':<30} {sides} {'difference':>11}   gradients: {sides}")
        for row in self.rows:
            base, candidate = (100 * part / self.count for part in (row.base, row.candidate))
            lines.append(
                f"{row.attack:<30} {base:>10.1f} {candidate:>10.1f} {100 * row.difference:>+11.1f} "
                f"{'':>12} {row.base_gradients:>10,} {row.candidate_gradients:>10,}"
            )
        lines.append(
            f"gradients per image that is robust at the end: base {self.base_effort.per_robust_image:.0f}, "
            f"candidate {self.candidate_effort.per_robust_image:.0f}"
        )
        lines += [self.early_stopped_text, ""] if self.early_stopped_text else [""]
        marks = {True: "pass", False: "FAIL", None: "-"}
        lines += [f"{marks[check.passed]:<4}  {check.name}: {check.evidence}" for check in self.checks]
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])


def holm_objection(verdict: Verdict, p_value: float, others: Sequence[float]) -> str:
    """Why a gain or a loss is not claimed: its p-value, corrected by Holm for those of the `others` of the same run, is
    above 0.05. Nothing if it is not, or if the verdict claims neither."""
    adjusted = holm([p_value, *others])[0]
    if verdict not in ("real", "harmful") or not others or adjusted <= 0.05:
        return ""
    return f"{len(others) + 1} audits in this run, and after Holm's correction for that p = {adjusted:.2g}"


def corrected(audits: Sequence[AuditReport]) -> list[AuditReport]:
    """The audits of one run with verdicts that hold for all of them together: one that finished early does not know of
    those that came later."""
    found = []
    for place, audit in enumerate(audits):
        others = [other.union.p_value for other in (*audits[:place], *audits[place + 1 :])]
        if objection := holm_objection(audit.verdict, audit.union.p_value, others):
            sentence = f"undecided: {audit.sentence.removeprefix(f'{audit.verdict}: ')}; {objection}"
            audit = replace(audit, verdict="undecided", sentence=sentence)
        found.append(audit)
    return found
