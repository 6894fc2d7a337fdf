"""Everything that determines what training produces, in one frozen record, and its schedules."""

import math
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from lipforge.attacks import norms
from lipforge.errors import InputError, RunError
from lipforge.types import Threat, check_threat

Method = Literal["standard", "fgsm-rs", "pgd-at", "trades"]
Schedule = Literal["cyclic", "cosine"]
Optimizer = Literal["sgd", "adamw"]


@dataclass(frozen=True)
class TrainConfig:
    """How to train. Two runs with equal configs, models and data on one kind of machine give equal weights.

    `steps` and `step_size` (a multiple of eps) are the attack's; 0 takes the method's own: one step of 1.25 eps for
    FGSM-RS, ten of 0.25 eps for PGD-AT and TRADES. The rate climbs in the share `warmup` of all steps; eps is 0 in the
    first `clean_epochs` and climbs during the next `eps_warmup`. `awp` is the size of the weight perturbation relative
    to the weights (its paper: 0.005), after `awp_after` epochs; `ema` is the decay of the weight average per step;
    `clip` limits the gradient's length; 0 turns each off. `limit` keeps the first images that are not in `holdout`.
    """

    method: Method = "fgsm-rs"
    threat: Threat = field(default_factory=lambda: Threat("linf", "8/255"))
    epochs: int = 20
    batch_size: int = 128
    lr: float = 0.2
    schedule: Schedule = "cyclic"
    warmup: float = 0.3
    optimizer: Optimizer = "sgd"
    momentum: float = 0.9
    weight_decay: float = 5e-4
    clip: float = 0.0
    label_smoothing: float = 0.0
    ema: float = 0.0
    steps: int = 0
    step_size: float = 0.0
    clean_epochs: float = 0.0
    eps_warmup: float = 0.0
    beta: float = 6.0
    awp: float = 0.0
    awp_after: int = 0
    crop: int = 4
    flip: bool = True
    holdout: int = 500
    limit: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for name, choices in (("method", Method), ("schedule", Schedule), ("optimizer", Optimizer)):
            if getattr(self, name) not in get_args(choices):
                raise InputError(f"{name} must be one of {', '.join(get_args(choices))}, got {getattr(self, name)!r}")
        check_threat(self.threat)
        if norms.of(self.threat).sparse:
            raise InputError(f"adversarial training has no {self.threat.norm} form; use linf or l2")
        for name in ("epochs", "batch_size", "holdout", "limit"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise InputError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("clip", "steps", "step_size", "clean_epochs", "eps_warmup", "beta", "awp", "awp_after", "crop"):
            if not getattr(self, name) >= 0:
                raise InputError(f"{name} must not be negative, got {getattr(self, name)}")
        for name in ("warmup", "momentum", "label_smoothing", "ema"):
            if not 0 <= getattr(self, name) < 1:
                raise InputError(f"{name} must lie in [0, 1), got {getattr(self, name)}")
        if not self.lr > 0 or not self.weight_decay >= 0:
            raise InputError(f"lr must be above 0 and weight_decay not below, got {self.lr} and {self.weight_decay}")

    @property
    def attack_steps(self) -> int:
        """Gradient steps per training image: 0 for standard training, always 1 for FGSM-RS."""
        return {"standard": 0, "fgsm-rs": 1}.get(self.method, self.steps or 10)

    @property
    def attack_step_size(self) -> float:
        """The size of these steps as a multiple of eps."""
        return self.step_size or (1.25 if self.method == "fgsm-rs" else 0.25)


def learning_rate(config: TrainConfig, done: float) -> float:
    """The rate after the share `done` of all steps: linear up to `lr`, then down to 0 in a line or half a cosine.

    >>> config = TrainConfig(lr=0.2, warmup=0.5)
    >>> [round(learning_rate(config, done), 3) for done in (0.0, 0.25, 0.5, 0.75, 1.0)]
    [0.0, 0.1, 0.2, 0.1, 0.0]
    """
    if done < config.warmup:
        return config.lr * done / config.warmup
    rest = (done - config.warmup) / (1.0 - config.warmup)
    return config.lr * ((1.0 + math.cos(math.pi * rest)) / 2.0 if config.schedule == "cosine" else 1.0 - rest)


def eps_share(config: TrainConfig, epoch: float) -> float:
    """The share of eps in use: 0 during `clean_epochs`, climbing to 1 in a line during `eps_warmup`, then 1.

    >>> config = TrainConfig(clean_epochs=1, eps_warmup=2)
    >>> [eps_share(config, epoch) for epoch in (0.5, 2.0, 3.0, 9.0)]
    [0.0, 0.5, 1.0, 1.0]
    """
    since = epoch - config.clean_epochs
    if since < 0:
        return 0.0
    return min(1.0, since / config.eps_warmup) if config.eps_warmup else 1.0


def check_same(recorded: dict[str, Any], wanted: dict[str, Any], where: str) -> None:
    """Raise with all differences unless the recorded settings are the wanted ones; a missing key counts as None."""
    if not isinstance(recorded, dict):
        raise RunError(
            f"{where}/config.json must hold an object, got {recorded!r:.60}; delete it to start this run anew"
        )
    if "step" in recorded and "step_size" not in recorded:
        raise RunError(
            f"{where} was started by an older lipforge, which called step_size 'step', so this one cannot resume it; "
            "use another directory, or finish the run with the version that started it"
        )
    found = [
        f"{key}: {recorded.get(key)!r} recorded, {wanted.get(key)!r} wanted"
        for key in dict.fromkeys([*wanted, *recorded])
        if recorded.get(key) != wanted.get(key)
    ]
    if found:
        raise RunError(
            f"{where} was trained with other settings, so it cannot be resumed with these; "
            "use another directory or the old settings:\n  " + "\n  ".join(found)
        )
