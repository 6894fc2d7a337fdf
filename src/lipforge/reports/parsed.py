"""Results of evaluations as the sections need them, and the colour that each classifier keeps throughout a page."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from lipforge.reports.read import Fields, Run

EXTRA = ("third", "fourth", "fifth")


@dataclass(frozen=True)
class Stage:
    """What one attack of a cascade left standing, and what it cost."""

    attack: str
    robust: int
    forwards: int
    backwards: int
    seconds: float


@dataclass(frozen=True)
class Robust:
    """One evaluation under attack."""

    label: str
    model: str
    data: str
    attack: str
    threat: str
    seed: int
    count: int
    clean: float
    clean_interval: tuple[float, float]
    robust: float
    interval: tuple[float, float]
    outcome: tuple[str, ...]
    stages: tuple[Stage, ...]
    forwards: int
    backwards: int
    seconds: float
    given_up: int
    notes: tuple[str, ...]
    data_digest: str

    @property
    def setting(self) -> tuple[str, str, str, str, int, int]:
        """What two evaluations must share to be compared image by image."""
        return self.data, self.data_digest, self.attack, self.threat, self.count, self.seed


def robust_results(run: Run) -> list[Robust]:
    """The evaluations of a run, the base model's first."""
    found = run.parsed("robust", parse_robust)
    return sorted(found, key=lambda result: (not is_base(result.label), result.label))


def parse_robust(fields: Fields) -> Robust:
    """An evaluation from its JSON."""
    outcome = fields.texts("outcome")
    result = Robust(
        label=fields.text("label"),
        model=fields.text("model", ""),
        data=fields.text("data", ""),
        attack=fields.text("attack"),
        threat=fields.text("threat"),
        seed=fields.whole("seed"),
        count=fields.whole("count"),
        clean=fields.number("clean_accuracy"),
        clean_interval=fields.interval("clean_interval"),
        robust=fields.number("robust_accuracy"),
        interval=fields.interval("interval"),
        outcome=outcome,
        stages=tuple(parse_stage(stage) for stage in fields.each("stages")),
        forwards=fields.whole("forwards"),
        backwards=fields.whole("backwards"),
        seconds=fields.number("seconds"),
        given_up=int(fields.optional("given_up") or 0),
        notes=fields.texts("notes"),
        data_digest=fields.text("data_digest", ""),
    )
    return result


def parse_stage(fields: Fields) -> Stage:
    """A stage from its JSON."""
    return Stage(
        fields.text("attack"),
        fields.whole("robust"),
        fields.whole("forwards"),
        fields.whole("backwards"),
        fields.number("seconds"),
    )


def gained_lost(base: Robust, forged: Robust) -> tuple[int, int] | None:
    """Images that only the second and that only the first classifies correctly under attack; None without outcomes."""
    if base.setting != forged.setting or not base.outcome or len(base.outcome) != len(forged.outcome):
        return None
    pairs = Counter((b == "robust", f == "robust") for b, f in zip(base.outcome, forged.outcome, strict=True))
    return pairs[False, True], pairs[True, False]


def is_base(label: str) -> bool:
    """Whether a label is that of the model without forged functions."""
    return label.lower() in ("base", "plain", "original", "unforged")


def roles(labels: Iterable[str]) -> dict[str, str]:
    """A colour for each label: the base model and the forged one have their own, others take what is left.

    >>> roles(["forged", "other", "base"])
    {'forged': 'forged', 'other': 'third', 'base': 'base'}
    """
    labels = list(dict.fromkeys(labels))
    base = next((label for label in labels if is_base(label)), None)
    forged = next((label for label in labels if label.lower().startswith(("forged", "candidate"))), None)
    if base is None and forged is None and labels:
        base = labels[0]
    named = {base: "base", forged: "forged"}
    others = [label for label in labels if label not in named]
    rest = {label: EXTRA[place % len(EXTRA)] for place, label in enumerate(others)}
    return {label: named.get(label) or rest[label] for label in labels}
