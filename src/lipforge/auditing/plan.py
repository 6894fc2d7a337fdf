"""What an audit runs, and how long."""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

from lipforge.attacks import (
    APGD,
    Attack,
    AttackState,
    Boundary,
    RayS,
    TargetedAPGD,
    autoattack,
    fast,
    margin,
    spelled,
)
from lipforge.attacks.cascades import standard_attacks
from lipforge.errors import InputError
from lipforge.results import MISCLASSIFIED, ROBUST
from lipforge.types import Threat

CLEAN, NON_ADAPTIVE, TRANSFER, REFINED = "clean", "non-adaptive", "transfer", "transfer, refined"
YOURS, LONGER, SQUARE, EQUAL = "your attack", "longer restarts", "square", "equal budget"
TARGETED, DOUBLE = "APGD-T", "float64"
OWN, TRANSFERRED = "own gradients", "transferred gradients"
AVERAGED, STRAIGHT, DISTILLED = "averaged gradients", "straight through rounding", "distilled copy"
FULL, BOUNDARY, HARD_LABEL = "AutoAttack", "boundary walk", "RayS"
"""The names of the stages, which are also the outcomes of the images that they break."""


BEFORE_GAIN = (BOUNDARY, HARD_LABEL)
ESCALATION = (*BEFORE_GAIN, AVERAGED, STRAIGHT, DISTILLED, FULL)
"""The stages that run only before a gain is claimed, or while gradients look masked."""


STAGES = (NON_ADAPTIVE, TRANSFER, REFINED, YOURS, LONGER, SQUARE, EQUAL, TARGETED, DOUBLE, *ESCALATION)
RESERVED = frozenset({ROBUST, MISCLASSIFIED, CLEAN, OWN, TRANSFERRED, *STAGES})
"""Names that no surrogate may have: what it broke would be counted as something else."""


@dataclass(frozen=True)
class EarlyStopped(Attack):
    """`first` on all images, then each of `then` on those whose margin came below `near` times the clean margin. The
    others are early-stopped: with `near` 1 those whose margin did not come down at all, with math.inf none."""

    name: ClassVar[str] = "early-stopped"
    first: Attack
    then: tuple[Attack, ...]
    near: float = 0.3

    def __post_init__(self) -> None:
        if not self.near > 0:
            raise InputError(f"near must be above 0, got {self.near}")

    def attack(self, state: AttackState) -> None:
        """Attack all images, then those that came close."""
        clean = margin(state.clean_logits(), state.y).clamp_min(1e-12).to(state.margin)
        self.first.attack(state)
        close = state.margin < self.near * clean
        state.early_stopped |= ~(close | state.broken)
        with state.only((close & ~state.broken).nonzero().squeeze(1)):
            for attack in self.then:
                if len(state.robust()):
                    attack.attack(state)

    def __str__(self) -> str:
        then = "; ".join(spelled(attack) for attack in self.then)
        return f"{spelled(self.first)}, then below {self.near:g} of the margin {then}"


@dataclass(frozen=True)
class Plan:
    """The attacks of an audit, the same for base and candidate; `audit_plan` makes one for fast or for standard.

    `non_adaptive` is what a user would run who trusts gradients. `adaptive` runs once per view, `longer` after that,
    each on the images that are still robust; `targeted` on the images that decide, robust on one side only, unless it
    is None; `full` on these too, if gradients look masked to the last.
    A claimed gain has to survive `boundary`, which starts far from the image, and in linf `hard_label`, which sees only
    the predicted class; None leaves one out. `extra` is an attack of the user's. `refine` are steps from the
    adversarial images of the opposite side, `square` queries, 0 for none. `margin` is the smallest difference in
    accuracy that matters: a verdict of no change says that it is smaller. `check_images` images go through the
    checklist, with `check_queries` queries for Square. With `stop_early` the audit ends at the first look,
    one after every 500 images, at which the verdict is decided.
    """

    non_adaptive: Attack
    adaptive: Attack
    longer: Attack
    full: Attack = field(default_factory=autoattack)
    targeted: Attack | None = None
    boundary: Attack | None = field(default_factory=lambda: Boundary(restarts=2))
    hard_label: Attack | None = field(default_factory=lambda: RayS(queries=2000))
    extra: Attack | None = None
    refine: int = 10
    square: int = 0
    margin: float = 0.01
    check_images: int = 50
    check_queries: int = 200
    seed: int = 0
    shard_size: int = 100
    stop_early: bool = True

    def __post_init__(self) -> None:
        if self.refine < 1 or self.shard_size < 1 or self.check_queries < 1:
            raise InputError(
                "refine, shard_size and check_queries must be at least 1, got "
                f"{self.refine}, {self.shard_size} and {self.check_queries}"
            )
        if self.square < 0 or self.check_images < 0:
            raise InputError(f"square and check_images must not be negative, got {self.square}, {self.check_images}")
        if not 0 < self.margin < 1:
            raise InputError(f"margin must lie between 0 and 1 (0.01 is one point), got {self.margin}")

    def before_gain(self, threat: Threat) -> dict[str, Attack]:
        """The attacks that have to leave a gain before it is claimed, by stage."""
        attacks = zip(BEFORE_GAIN, (self.boundary, self.hard_label if threat.norm == "linf" else None), strict=True)
        return {stage: attack for stage, attack in attacks if attack is not None}

    def stages(self, views: Sequence[str], *, escalated: int = 0, before_gain: Collection[str] = ()) -> list[str]:
        """All stages in the order in which they run; `views` are the names of the adaptive attacks, and `escalated` is
        0, 1 for all of the escalation but AutoAttack, or 2; `before_gain` are the stages of that kind that ran."""
        further = {stage: escalated > (stage == FULL) for stage in ESCALATION} | {
            stage: stage in before_gain for stage in BEFORE_GAIN
        }
        own = {YOURS: self.extra is not None, SQUARE: self.square > 0, TARGETED: self.targeted is not None}
        asked = {**own, **further}
        first, second, *others = (stage for stage in STAGES if asked.get(stage, True))
        return [first, second, *views, *others]


class Version(NamedTuple):
    """How hard the adaptive attacks of a version try, and from which share of the clean margin on: steps and restarts
    of APGD; steps, targets and restarts of the two targeted attacks, the second of them longer."""

    apgd: tuple[int, int]
    targeted: tuple[int, int, int]
    longer: tuple[int, int, int]
    near: float


VERSIONS = {
    "fast": Version((20, 1), (20, 2, 1), (50, 2, 1), near=0.3),
    "standard": Version((100, 2), (100, 9, 1), (200, 3, 2), near=math.inf),
}


def audit_plan(
    version: str = "fast",
    *,
    classes: int = 10,
    square: int = 0,
    margin: float = 0.01,
    seed: int = 0,
    shard_size: int = 100,
    stop_early: bool = True,
) -> Plan:
    """The plan of a version, "fast" or "standard", for a model with that many classes.

    In "fast" an adaptive attack stops early on an image whose margin its first attack does not bring below 0.3 of the
    clean one, and the images that decide face APGD-T with AutoAttack's budget, which stops early on none. "standard"
    never stops early, and begins with AutoAttack.
    """
    if version not in VERSIONS:
        raise InputError(f"version must be one of {', '.join(VERSIONS)}, got {version!r}")
    if classes < 2:
        raise InputError(f"classes must be at least 2, got {classes}")
    form = VERSIONS[version]
    steps, restarts = form.apgd
    # Margin first: it breaks most, so that the others have little left to do.
    first, *others = (APGD(steps=steps, restarts=restarts, loss=loss) for loss in ("margin", "ce", "dlr")[:classes])
    targeted, longer = (
        TargetedAPGD(steps=length, targets=min(targets, classes - 1), restarts=again, loss="margin", order="nearest")
        for length, targets, again in (form.targeted, form.longer)
    )
    return Plan(
        non_adaptive=fast() if version == "fast" else autoattack(),
        adaptive=EarlyStopped(first, (targeted, *others), form.near),
        longer=EarlyStopped(APGD(steps=steps, loss="margin"), (longer,), form.near),
        targeted=standard_attacks(classes)[1] if version == "fast" else None,
        square=square,
        margin=margin,
        seed=seed,
        shard_size=shard_size,
        stop_early=stop_early,
    )
