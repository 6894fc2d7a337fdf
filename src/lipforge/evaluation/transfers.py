"""Adversarial images crafted on one classifier and scored on another."""

import time
from typing import Any

from torch import Tensor, nn

from lipforge.attacks import Attack, attack_text, refine
from lipforge.attacks.queries import is_misclassified
from lipforge.batching import ImageData, check_eval, device_of
from lipforge.errors import InputError
from lipforge.evaluation.robust import attack_config, prepared_once, setting_of, spent, summary, task_name
from lipforge.records import to_builtins
from lipforge.results import MISCLASSIFIED, ROBUST, Note, TransferResult
from lipforge.runs import SHARD_SIZE, Experiment, RunDir, Shard, Watch
from lipforge.types import Classifier, Threat

REFINE = 20  # steps up the source's margin loss after the attack, where nobody says otherwise
TRANSFER = "transfer"


def transfer(
    source: Classifier,
    target: Classifier,
    data: ImageData | tuple[Tensor, Tensor],
    attack: Attack,
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
    if refine < 0:
        raise InputError(f"refine must be at least 0, got {refine}")
    if isinstance(target, nn.Module):
        check_eval(target)
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
