"""Adversarial images crafted on one classifier and scored on another."""

import time
from typing import Any

import torch
from safetensors.torch import load_file
from torch import nn

from lipforge.attacks import AnyAttack, Attack, attack_text, refine
from lipforge.attacks.queries import is_misclassified
from lipforge.batching import ImageData, LabelledSource, check_eval, device_of
from lipforge.errors import InputError
from lipforge.evaluation.robust import (
    attack_config,
    checked_attack,
    output_notes,
    prepared_once,
    setting_of,
    spent,
    summary,
    task_name,
)
from lipforge.records import to_builtins
from lipforge.results import MISCLASSIFIED, ROBUST, CleanResult, Note, RobustResult, TransferResult
from lipforge.runs import SHARD_SIZE, Experiment, RunDir, Shard, Watch, change_of
from lipforge.statistics import clopper_pearson
from lipforge.types import Classifier, Threat, check_threat

REFINE = 20  # steps up the source's margin loss after the attack, where nobody says otherwise
TRANSFER = "transfer"


def transfer(
    source: Classifier,
    target: Classifier,
    data: LabelledSource,
    attack: AnyAttack,
    threat: Threat,
    *,
    names: tuple[str, str] = ("source", "target"),
    refine: int = REFINE,
    run: RunDir | None = None,
    seed: int = 0,
    shard_size: int = SHARD_SIZE,
    show_progress: bool | None = None,
) -> TransferResult:
    """How `target` fares against the images that `attack` crafts on `source`.

    Attacks stop just across the source's boundary, where a point says little about another classifier. So each point is
    refined: `refine` steps (0 in the paper) of a tenth of eps down the source's margin; the least margin counts.
    """
    check_threat(threat)
    if refine < 0:
        raise InputError(f"refine must be at least 0, got {refine}")
    if isinstance(target, nn.Module):
        check_eval(target)
    attack = checked_attack(attack, run)
    experiment = Experiment.open(data, source, run=run, shard_size=shard_size, show_progress=show_progress)
    name = f"transfer__{task_name('-to-'.join(names), attack_text(attack), threat, seed)}"
    config = {**attack_config(attack, threat, seed), "refine": refine}
    task = experiment.task(name, {"source": source, "target": target}, config)
    watch = Watch(lambda shard: dict(zip(names, (shard["source"], shard["target"]), strict=True)))
    prepared = prepared_once(experiment, attack, source)

    def crafted(shard: Shard) -> dict[str, Any]:
        return transfer_shard(prepared(), source, target, shard, attack, threat, seed, refine, watch)

    shards = experiment.work(task, crafted, title=f"{names[0]} to {names[1]}", status=watch)
    on_source, on_target = (summary(shards, side) for side in ("source", "target"))
    pairs = zip(on_source["outcome"], on_target["outcome"], strict=True)
    shared = [end for start, end in pairs if MISCLASSIFIED not in (start, end) and start != ROBUST]
    result = TransferResult(
        source=names[0],
        target=names[1],
        **setting_of(experiment, attack, threat, seed),
        refine=refine,
        source_clean_accuracy=on_source["clean_accuracy"],
        source_robust_accuracy=on_source["robust_accuracy"],
        source_interval=on_source["interval"],
        source_outcome=on_source["outcome"],
        **on_target,
        shared=len(shared),
        transferred=shared.count(TRANSFER),
        name=name,
        source_change=change_of(source),
        target_change=change_of(target),
    )
    return experiment.finish(name, result)


def transfer_shard(
    prepared: Classifier,
    source: Classifier,
    target: Classifier,
    shard: Shard,
    attack: Attack,
    threat: Threat,
    seed: int,
    steps: int,
    watch: Watch,
) -> dict[str, Any]:
    """What became of these images on both sides, ready for JSON; the attack searches on the `prepared` source."""
    started = time.perf_counter()
    result = attack.run(prepared, *shard[:2], threat=threat, seed=seed, sample_ids=shard.ids, watch=watch)
    on_source = list(result.outcome)
    at = [place for place, word in enumerate(on_source) if word != MISCLASSIFIED]
    refined = refine(source, result.images[at], shard.x[at], shard.y[at], shard.ids[at], threat, steps)
    crafted = shard.x.clone()
    crafted[at] = refined.points
    for place, broken in zip(at, (refined.margin < 0).tolist(), strict=True):
        on_source[place] = "refine" if broken and on_source[place] == ROBUST else on_source[place]
    cost = spent(result, started)
    cost["notes"] = [*to_builtins(output_notes(prepared, shard, attack, threat)), *cost["notes"]]
    if stuck := int(refined.stuck.sum()):
        text = "had a gradient of exactly 0, or none, and were not refined there"
        cost["notes"].append(to_builtins(Note("not_refined", text, stuck, len(at))))
    cost["forwards"] += 2 * len(shard.x) + refined.forwards * len(at)
    cost["backwards"] += refined.backwards * len(at)
    device = device_of(target) if isinstance(target, nn.Module) else shard.x.device
    clean, broken = (is_misclassified(target, x.to(device), shard.y.to(device)) for x in (shard.x, crafted))
    on_target = [
        MISCLASSIFIED if wrong else TRANSFER if fooled else ROBUST
        for wrong, fooled in zip(clean.tolist(), broken.tolist(), strict=True)
    ]
    return {**cost, "source": on_source, "target": on_target, "seconds": time.perf_counter() - started}


@torch.no_grad()
def score_saved(
    target: nn.Module,
    data: ImageData,
    crafted: RobustResult,
    threat: Threat,
    run: RunDir,
    *,
    shard_size: int,
    leave_robust_clean: bool = False,
) -> CleanResult:
    """How `target` fares against the images that `evaluate` crafted on another model and saved in `run`.

    An image counts if the target classifies both it and its adversarial version correctly. With `leave_robust_clean`
    an image that is robust on the source stays as it is, as in the arrays that AutoAttack's own code returns, and every
    image of that array which the target classifies correctly counts.
    """
    experiment = Experiment.open(data, target, run=run)
    name = task_name(crafted.label, crafted.attack, threat, crafted.seed)
    correct = 0
    for index, start in enumerate(range(0, len(data), shard_size)):
        shard = experiment.read(range(start, min(start + shard_size, len(data))))
        saved = load_file(run.path / "shards" / name / f"{index:04d}.safetensors")["images"].to(shard.x)
        if leave_robust_clean:
            robust = torch.tensor(crafted.robust[start : start + shard_size], device=shard.x.device)
            saved = torch.where(robust[:, None, None, None], shard.x, saved)
        right = ~is_misclassified(target, saved, shard.y)
        if not leave_robust_clean:
            right &= ~is_misclassified(target, shard.x, shard.y)
        correct += int(right.sum())
    return CleanResult(len(data), correct, correct / len(data), clopper_pearson(correct, len(data)))
