"""The whole robustness curve in one run: the smallest eps that breaks each image, by a minimum-norm attack."""

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from lipforge.attacks import DDN, FMN, AnyAttack, Attack, Cascade, attack_text
from lipforge.attacks.cascades import MinimumNorm
from lipforge.batching import LabelledSource
from lipforge.errors import InputError
from lipforge.evaluation.robust import (
    attack_config,
    checked_attack,
    joined,
    output_notes,
    prepared_once,
    shard_stages,
    spent,
    task_name,
    totals,
)
from lipforge.records import to_builtins
from lipforge.results import MISCLASSIFIED, CurveComparison, CurveResult, Note, merge_notes
from lipforge.results.curve import curve_fields
from lipforge.results.evaluation import unreliable_notes
from lipforge.runs import SHARD_SIZE, Experiment, RunDir, Shard, Watch, change_of, digest_of, slug
from lipforge.runs.identity import canonical
from lipforge.types import Classifier, Norm, Threat

LARGEST: Mapping[str, str] = {"linf": "16/255", "l2": "2", "l1": "24"}
"""Where the curve of each norm ends unless told otherwise: two to four times the usual radius."""


def curve(
    classifier: Classifier,
    data: LabelledSource,
    norm: Norm = "linf",
    *,
    eps: float | str | None = None,
    attack: AnyAttack | None = None,
    run: RunDir | None = None,
    label: str = "model",
    model_name: str = "",
    seed: int = 0,
    shard_size: int = SHARD_SIZE,
    identity: Mapping[str, Any] | None = None,
    device: torch.device | None = None,
    show_progress: bool | None = None,
) -> CurveResult:
    """Robust accuracy at every eps from 0 to `eps` (linf 16/255, l2 2, l1 24 by default), from one attack per image.

    `attack` is `minimum-norm` by default, or fmn, ddn, or a cascade of these. Runs, labels and identities are as in
    `evaluate`.
    """
    threat = curve_threat(norm, eps)
    attack = MinimumNorm() if attack is None else checked_attack(attack, run, identity)
    check_minimises(attack)
    experiment = Experiment.open(
        data,
        classifier,
        run=run,
        shard_size=shard_size,
        identity=identity,
        device=device,
        show_progress=show_progress,
    )
    name = curve_name(label, attack_text(attack), str(threat), seed)
    task = experiment.task(name, {"model": classifier}, attack_config(attack, threat, seed))
    watch, prepared = Watch(), prepared_once(experiment, attack, classifier)
    shards = experiment.work(
        task, lambda shard: curve_shard(prepared(), shard, attack, threat, seed, watch), title=label, status=watch
    )
    smallest = tuple(joined(shards, "smallest_eps"))
    notes = merge_notes([Note(**note) for note in joined(shards, "notes")], len(smallest))
    result = CurveResult(
        label=label,
        model=model_name,
        data=experiment.data.name,
        attack=attack_text(attack),
        threat=str(threat),
        norm=threat.norm,
        eps=threat.eps,
        seed=seed,
        **curve_fields(smallest, threat.eps),
        stages=shard_stages(shards),
        **totals(shards),
        notes=notes,
        data_digest=experiment.data_digest,
        unreliable=_unreliable(notes, smallest),
        change=change_of(classifier),
    )
    return experiment.finish(name, result)


def check_minimises(attack: Attack) -> None:
    """Raise unless the attack goes on after its first success, to look for a nearer point."""
    parts = attack.attacks if isinstance(attack, Cascade) else (attack,)
    if not all(isinstance(part, FMN | DDN | MinimumNorm) for part in parts):
        raise InputError(
            f"attack must be minimum-norm, fmn, ddn or a cascade of these, got {attack_text(attack)}: it stops at its "
            "first success, so that its curve would be too high; for single radii use evaluate or sweep"
        )


def _unreliable(notes: Sequence[Note], smallest: Sequence[float | None]) -> bool:
    """Whether a note condemns the curve: one on the whole model by what is correct, others by what is robust to the
    end, the only images that are tested for masked gradients."""
    whole = [note for note in notes if note.count is None]
    correct = sum(value != 0 for value in smallest)
    condemned = unreliable_notes(whole, len(smallest), correct)
    return bool(condemned or unreliable_notes(notes, len(smallest), smallest.count(None)))


def curve_threat(norm: Norm, eps: float | str | None = None) -> Threat:
    """The threat at the end of a curve; `eps` is one radius, not a range."""
    if isinstance(norm, Threat):
        raise InputError(
            f'norm must be a text, with eps beside it: norm="{norm.norm}", eps="{norm.spelling}"; got a Threat'
        )
    if isinstance(eps, list | tuple) or (isinstance(eps, str) and "," in eps):
        raise InputError(f"eps must be one radius, where the curve ends, got {eps!r}; it always begins at 0")
    if eps is None:
        Threat(norm, 1.0)  # an unknown norm is an error of its own
        eps = LARGEST[norm.lower()]
    return Threat(norm, eps)


def curve_name(label: str, attack: str, threat: str, seed: int) -> str:
    """What a curve's shards and result are called in a run directory.

    >>> curve_name("base", "fmn", "linf 16/255", seed=0)
    'curve__base__fmn__linf-16over255'
    """
    return f"curve__{task_name(label, attack, threat, seed)}"


def comparison_name(found: CurveComparison) -> str:
    """What the comparison of two curves is called in a run directory; other attacks, images or seeds make another."""
    digest = digest_of([found.attack, found.threat, found.seed, canonical(found.data), found.count])[:8]
    return f"curves__{slug(found.candidate)}-against-{slug(found.base)}__{digest}"


def curve_shard(
    classifier: Classifier, shard: Shard, attack: Attack, threat: Threat, seed: int, watch: Watch
) -> dict[str, Any]:
    """The smallest eps of each image of a shard, and what it cost, ready for JSON."""
    started = time.perf_counter()
    result = attack.run(
        classifier, shard.x, shard.y, threat=threat, seed=seed, sample_ids=shard.ids, watch=watch, minimise=True
    )
    cost = spent(result, started)
    return {
        **cost,
        # Rounding may put a point on the ball's edge a hair outside of it.
        "smallest_eps": [min(d, threat.eps) if math.isfinite(d) else None for d in result.distance.tolist()],
        "outcome": list(result.outcome),
        "correct": len(shard.x) - result.outcome.count(MISCLASSIFIED),
        "stages": to_builtins(result.stages),
        "notes": [*to_builtins(output_notes(classifier, shard, attack, threat)), *cost["notes"]],
    }
