"""What an audit runs, and how long."""

import math
from dataclasses import dataclass

from lipforge.attacks import APGD, Attack, AutoAttack, TargetedAPGD
from lipforge.audit.pursue import Pursue
from lipforge.errors import InputError


@dataclass(frozen=True)
class Plan:
    """The attacks of an audit, the same for base and candidate; `audit_plan` makes one for fast or for standard.

    `plain` is what a user would run who trusts gradients. `adaptive` runs once per surrogate, `longer` after that, each
    on what still stands. `refine` are steps from the other side's adversarial images. `square` is a number of queries,
    0 for none. `margin` is the smallest difference in accuracy that matters: a verdict of no change says that the
    difference is smaller. `check_images` images go through the checklist, `check_queries` queries each for Square.
    """

    plain: Attack
    adaptive: Attack
    longer: Attack
    refine: int = 10
    square: int = 0
    margin: float = 0.01
    check_images: int = 50
    check_queries: int = 200
    seed: int = 0
    shard_size: int = 100

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


@dataclass(frozen=True)
class Version:
    """How hard the adaptive attacks of a version try, and from which share of the clean margin on."""

    steps: int
    restarts: int
    targets: int
    longer_steps: int
    longer_targets: int
    longer_restarts: int
    near: float


VERSIONS = {"fast": Version(20, 1, 2, 50, 2, 1, near=0.3), "standard": Version(100, 2, 9, 200, 3, 2, near=math.inf)}


def audit_plan(
    version: str = "fast",
    *,
    classes: int = 10,
    square: int = 0,
    margin: float = 0.01,
    seed: int = 0,
    shard_size: int = 100,
) -> Plan:
    """The plan of a version, "fast" or "standard", for a model with that many classes.

    In "fast" an image whose margin no surrogate brings below 0.3 of the clean one is not attacked with that surrogate
    any longer; "standard" gives up nothing.
    """
    if version not in VERSIONS:
        raise InputError(f"version must be one of {', '.join(VERSIONS)}, got {version!r}")
    if classes < 2:
        raise InputError(f"classes must be at least 2, got {classes}")
    form = VERSIONS[version]
    # Margin first: it breaks most, so that the others have little left to do.
    first = APGD(steps=form.steps, restarts=form.restarts, loss="margin")
    others = [APGD(steps=form.steps, restarts=form.restarts, loss=loss) for loss in ("ce", "dlr")[: classes - 1]]
    targeted, longer = (
        TargetedAPGD(steps=steps, targets=min(targets, classes - 1), restarts=restarts, loss="margin", order="near")
        for steps, targets, restarts in (
            (form.steps, form.targets, 1),
            (form.longer_steps, form.longer_targets, form.longer_restarts),
        )
    )
    return Plan(
        plain=AutoAttack(version),
        adaptive=Pursue(first, (targeted, *others), form.near),
        longer=Pursue(APGD(steps=form.steps, loss="margin"), (longer,), form.near),
        square=square,
        margin=margin,
        seed=seed,
        shard_size=shard_size,
    )
