"""What an audit found, for people and for JSON."""

from dataclasses import dataclass

from lipforge.attacks.trial import ROBUST
from lipforge.audit.verdict import Verdict
from lipforge.evaluation.compare import Comparison


@dataclass(frozen=True)
class Check:
    """One item of the checklist: passed, failed (False) or not applicable (None), with the numbers that say so."""

    name: str
    passed: bool | None
    evidence: str


@dataclass(frozen=True)
class AuditRow:
    """How many images stand after this attack and all above it, the difference of the shares, and the gradients.

    `base_given_up` and `candidate_given_up` count images that stand at the end and that this attack left early, because
    they were far from falling.
    """

    attack: str
    base: int
    candidate: int
    difference: float
    base_gradients: int
    candidate_gradients: int
    base_given_up: int = 0
    candidate_given_up: int = 0


@dataclass(frozen=True)
class Effort:
    """Passes through one side; `per_standing` are gradients per image that still stands at the end."""

    forwards: int
    backwards: int
    per_standing: float


@dataclass(frozen=True)
class AuditReport:
    """A verdict on a candidate against its base, and everything it rests on.

    `plain` and `union` compare the two image by image, under the plain attack and under all attacks together; the
    verdict is about `union`. `outcome` has for each image the attack that broke it, "robust" or "misclassified".
    `base_given_up` and `candidate_given_up` count the images that stand and that every view gave up early.
    """

    verdict: Verdict
    sentence: str
    doubts: tuple[str, ...]
    model: str
    data: str
    threat: str
    norm: str
    eps: float
    seed: int
    count: int
    plain_attack: str
    margin: float
    images_needed: int | None
    clean: Comparison
    plain: Comparison
    union: Comparison
    rows: tuple[AuditRow, ...]
    checks: tuple[Check, ...]
    base_effort: Effort
    candidate_effort: Effort
    base_outcome: tuple[str, ...]
    candidate_outcome: tuple[str, ...]
    notes: tuple[str, ...]
    seconds: float
    base_given_up: int = 0
    candidate_given_up: int = 0

    @property
    def exit_code(self) -> int:
        """0 for real and no change, 1 for not real and harmful, 3 for undecided."""
        return {"real": 0, "no change": 0, "not real": 1, "harmful": 1, "undecided": 3}[self.verdict]

    def __str__(self) -> str:
        """The sentence, the doubts, the attacks, the effort, the checks."""
        lines = [self.sentence, *(f"doubt: {doubt}" for doubt in self.doubts), ""]
        sides = f"{'base':>10} {'candidate':>10}"
        lines.append(f"{'% left standing after':<30} {sides} {'difference':>11}   gradients: {sides}")
        for row in self.rows:
            left, right = (100 * part / self.count for part in (row.base, row.candidate))
            lines.append(
                f"{row.attack:<30} {left:>10.1f} {right:>10.1f} {100 * row.difference:>+11.1f} "
                f"{'':>12} {row.base_gradients:>10,} {row.candidate_gradients:>10,}"
            )
        lines.append(
            f"gradients per image that stands at the end: base {self.base_effort.per_standing:.0f}, "
            f"candidate {self.candidate_effort.per_standing:.0f}"
        )
        lines += [*self._given_up(), ""]
        for check in self.checks:
            mark = {True: "pass", False: "FAIL", None: "-"}[check.passed]
            lines.append(f"{mark:<4}  {check.name}: {check.evidence}")
        lines += [f"note: {note}" for note in self.notes]
        return "\n".join(lines)

    def _given_up(self) -> list[str]:
        sides = (
            ("base", self.base_given_up, self.base_outcome),
            ("candidate", self.candidate_given_up, self.candidate_outcome),
        )
        if not any(count for _, count, _ in sides):
            return []
        counts = (f"{name} {count} of {outcome.count(ROBUST)}" for name, count, outcome in sides)
        return [f"images that stand and were given up early in every view: {', '.join(counts)}"]
