"""A checklist for published robust accuracies: rules that numbers without masked gradients keep, and who breaks them.

Accuracies are in percent, tolerances in percentage points. Attacks are known by name (`known`): FGSM takes one
step; PGD and CW take many; AA is AutoAttack; `transfer` are adversarial images that AutoAttack made for the base model.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

from lipforge.errors import InputError
from lipforge.paper.tables import KINDS, Numbers, Published

SUBSET = 2.0
"""Slack between two tables. Some are on fewer images: every CW figure of the paper is a multiple of 0.02, so 5,000 or
fewer. Two runs on 5,000 of 10,000 images at 60 % differ by up to 1.4 points 19 times out of 20."""
OUTLIER = 3.0
"""How far outside its neighbours a number must be to break a trend."""
WIDENING = 5.0
"""How much the gap between a weak and a strong attack may grow from the base to the forged model."""
ZERO = 1.0
"""What counts as zero accuracy at the largest radius."""
LARGE = 64 / 255
"""From which linf radius on an iterative attack must reach zero."""


@dataclass(frozen=True)
class Finding:
    """A published number that breaks a rule, with the numbers that show it."""

    rule: str
    table: str
    where: str
    eps: str
    evidence: str


Outcomes = Iterator[tuple[Published, bool, str]]
"""One item per comparison that the numbers allow: the number, whether it breaks the rule, and the evidence."""


@dataclass(frozen=True)
class Rule:
    """A rule in words that a reader can recompute, and the function that applies it."""

    name: str
    text: str
    apply: Callable[[Numbers], Outcomes]


@dataclass(frozen=True)
class RuleCount:
    name: str
    text: str
    checked: int
    broken: int


@dataclass(frozen=True)
class TableAudit:
    """The checklist applied to published numbers; `unknown` are attacks that no rule but "conflict" looks at."""

    source: str
    numbers: int
    rules: tuple[RuleCount, ...]
    findings: tuple[Finding, ...]
    unknown: tuple[str, ...] = ()

    @property
    def applied(self) -> int:
        return sum(rule.checked > 0 for rule in self.rules)


def check_table(rows: Iterable[Published], *, source: str) -> TableAudit:
    """Apply every rule to published numbers; it is an error if none applies, because silence would read as praise."""
    numbers, counts, findings = Numbers(rows), [], []
    if not numbers.rows:
        raise InputError("rows must not be empty")
    for rule in RULES:
        outcomes = list(rule.apply(numbers))
        broken = [Finding(rule.name, row.table, str(row), row.eps, text) for row, found, text in outcomes if found]
        counts.append(RuleCount(rule.name, rule.text, len(outcomes), len(broken)))
        findings += broken
    if not any(rule.checked for rule in counts):
        found = ", ".join(dict.fromkeys(row.attack for row in numbers.rows))
        raise InputError(
            f"{source} has nothing that a rule could check: rules compare the attacks {', '.join(KINDS)} on one model "
            f"at one radius, or PGD over radii; found {found}"
        )
    unknown = dict.fromkeys(row.attack for row in numbers.rows if not row.kind[0])
    return TableAudit(source, len(numbers.rows), tuple(counts), tuple(findings), tuple(unknown))


def _one_step(numbers: Numbers) -> Outcomes:
    for one, many in numbers.pairs("fgsm", "pgd"):
        short = many.accuracy - one.accuracy
        yield one, short > 0, f"FGSM {_n(one)} < PGD {_n(many)}, by {short:.2f}"


def _radius(numbers: Numbers) -> Outcomes:
    for sweep in numbers.sweeps("pgd"):
        for near, far in pairwise(sweep):
            rises = far.accuracy > near.accuracy
            yield far, rises, f"PGD {_n(near)} at {near.eps} rises to {_n(far)} at {far.eps}"
        last = sweep[-1]
        if last.radius >= LARGE:
            yield last, last.accuracy > ZERO, f"PGD leaves {_n(last)} at the largest radius {last.eps}"


def _trend(numbers: Numbers) -> Outcomes:
    groups: dict[tuple[str, ...], dict[float, dict[float, Published]]] = defaultdict(dict)
    for row in numbers.rows:
        if row.share is not None and row.kind[0] not in ("", "clean"):
            grid = groups[row.dataset, row.model, row.variant, *row.kind]
            grid.setdefault(row.radius, {}).setdefault(row.share, row)
    for grid in groups.values():
        outside = {radius: dict(_outside(line)) for radius, line in grid.items()}
        radii = sorted(grid)
        for place, radius in enumerate(radii):
            beside = radii[max(place - 1, 0) : place] + radii[place + 1 : place + 2]
            for share, (gap, text) in outside[radius].items():
                # Where the radius beside it bends the same way, the bend is the trend.
                alone = all(outside[other].get(share, (0.0, ""))[0] <= OUTLIER for other in beside)
                yield grid[radius][share], gap > OUTLIER and alone, text


def _outside(line: dict[float, Published]) -> Iterator[tuple[float, tuple[float, str]]]:
    """How far each number is outside the range of its two neighbours in ratio, by ratio, with the words for it."""
    shares = sorted(line)
    for left, share, right in zip(shares, shares[1:], shares[2:], strict=False):
        row, low, high = line[share], *sorted((line[left].accuracy, line[right].accuracy))
        gap = max(low - row.accuracy, row.accuracy - high)
        beside = f"{_n(line[left])} at {line[left].ratio} and {_n(line[right])} at {line[right].ratio}"
        yield share, (gap, f"{row.attack} {_n(row)} is {gap:.2f} outside {beside}")


def _at_most(strong: str, weak: str, numbers: Numbers) -> Outcomes:
    """A strong attack leaves no more than a weak one, up to the slack between two tables."""
    for row, other in numbers.pairs(strong, weak):
        gap = row.accuracy - other.accuracy
        yield row, gap > SUBSET, f"{row.attack} {_n(row)} is {gap:.2f} above {other.attack} {_n(other)}"


def _widening(weak: str, strong: str, slack: float, numbers: Numbers) -> Outcomes:
    """The gap between a weak and a strong attack is at most so much larger than on the base."""
    for row, other in numbers.pairs(weak, strong):
        before, after = numbers.base_of(row), numbers.base_of(other)
        if row.share != 0 and before is not None and after is not None:
            gap, base_gap = row.accuracy - other.accuracy, before.accuracy - after.accuracy
            here = f"{row.attack} {_n(row)} is {gap:+.2f} from {other.attack} {_n(other)}"
            yield row, gap - base_gap > slack, f"{here}; on the base {_n(before)} is {base_gap:+.2f} from {_n(after)}"


def _conflict(numbers: Numbers) -> Outcomes:
    for row in numbers.rows:
        first = numbers.get(row.setting, row)
        if first is not None and first is not row:
            text = f"{row.attack} {_n(row)} here, {_n(first)} in table {first.table}"
            yield row, row.accuracy != first.accuracy, text


def _n(row: Published) -> str:
    return f"{row.accuracy:.2f}"


LEAVES = f"leaves at most {SUBSET:g} more than"

RULES = (
    Rule("one step", "FGSM leaves at least as much as PGD at the same radius; tolerance 0", _one_step),
    Rule(
        "radius",
        f"PGD never rises with the radius (tolerance 0), and leaves at most {ZERO:g} at the largest, if that is 64/255 "
        "or more. Not applied to FGSM, whose single step can overshoot at large radii",
        _radius,
    ),
    Rule(
        "trend",
        f"a number lies at most {OUTLIER:g} outside the range of its neighbours in ratio, unless the next radius bends "
        "the same way",
        _trend,
    ),
    Rule("cw-pgd", f"CW, iterative and white box, {LEAVES} PGD", partial(_at_most, "cw", "pgd")),
    Rule("aa-pgd", f"AA, which contains an iterative attack, {LEAVES} PGD", partial(_at_most, "aa", "pgd")),
    Rule("aa-cw", f"AA {LEAVES} CW", partial(_at_most, "aa", "cw")),
    Rule("white box", f"AA, white box, {LEAVES} transfer, black box", partial(_at_most, "aa", "transfer")),
    Rule(
        "cw-transfer",
        f"CW minus transfer is at most {SUBSET:g} larger than CW minus AA on the base, whose transfer is its own AA",
        partial(_widening, "cw", "transfer", SUBSET),
    ),
    Rule(
        "cw-aa",
        f"CW minus AA is at most {WIDENING:g} larger than on the base: a weak attack should not lose so much more",
        partial(_widening, "cw", "aa", WIDENING),
    ),
    Rule("conflict", "the same quantity has the same value in every table; tolerance 0", _conflict),
)
"""All rules, in the order in which they are applied."""
