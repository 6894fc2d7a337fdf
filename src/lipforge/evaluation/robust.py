"""Accuracy under attack, shard by shard: it can be killed, resumed and shared, and gives the same numbers."""

import functools
import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_args

import torch
from safetensors.torch import save
from torch import Tensor, nn

from lipforge.attacks import AnyAttack, Attack, AttackResult, AttackState, as_attack, attack_text, is_function
from lipforge.attacks.checks import LOOKED_AT, model_notes
from lipforge.attacks.folding import CHECKED
from lipforge.attacks.queries import check_labels, logits_of
from lipforge.batching import ImageSource, LabelledSource, batches, check_eval, device_of, image_count
from lipforge.errors import InputError
from lipforge.evaluation.dtypes import dtype_of
from lipforge.evaluation.sizes import AUTO, BATCH_SIZE, BatchSize, chosen_size, parse_batch_size
from lipforge.progress import progress
from lipforge.records import to_builtins, write_whole
from lipforge.results import MISCLASSIFIED, ROBUST, CleanResult, Note, RobustResult, Stage, merge_notes
from lipforge.results.evaluation import merge_stages, unreliable_notes
from lipforge.runs import Experiment, RunDir, Shard, Task, Watch, change_of, slug
from lipforge.statistics import Method, clopper_pearson, interval_of
from lipforge.types import Classifier, Threat, check_threat


def evaluate(
    classifier: Classifier,
    data: LabelledSource,
    attack: AnyAttack,
    threat: Threat,
    *,
    run: RunDir | None = None,
    label: str = "model",
    model_name: str = "",
    seed: int = 0,
    batch_size: BatchSize = BATCH_SIZE,
    shard_size: int | None = None,
    save_images: bool = False,
    interval: Method = "clopper-pearson",
    identity: Mapping[str, Any] | None = None,
    device: torch.device | None = None,
    show_progress: bool | None = None,
) -> RobustResult:
    """How many images of `data` are robust to `attack`, image by image, with intervals, passes and notes.

    `attack` is one of lipforge, its text, one of another tool by `from_foolbox` and the like, or a function
    `(model, x, y)` or `(model, x, y, threat)` to adversarial images; those outside the threat do not count.

    With `run` every shard is kept: the same call again resumes, other processes may help, and torchrun's ranks share
    the shards. The numbers depend on the shard alone, so on none of that. `label` names the evaluation in the run;
    `identity` adds what a resumed call must agree on; a classifier that is no module needs it in a run. `save_images`
    keeps the adversarial images beside each shard, as float32. A function runs on `device`, or where the images are.
    `batch_size="auto"` measures which is fastest; a run keeps the number in batch_size.json.
    """
    check_threat(threat)
    batch_size = parse_batch_size(batch_size)
    if interval not in get_args(Method):
        raise InputError(f"the interval must be one of {', '.join(get_args(Method))}, got {interval!r}")
    if save_images and run is None:
        raise InputError("save_images needs a run directory to keep the images in; pass run=RunDir.open(path)")
    attack = checked_attack(attack, run, identity)
    experiment = Experiment.open(
        data,
        classifier,
        run=run,
        shard_size=BATCH_SIZE if shard_size is None else shard_size,
        identity=identity,
        device=device,
        show_progress=show_progress,
    )
    size = chosen_size(experiment, classifier, shard_size) if batch_size == AUTO else batch_size
    config = {**attack_config(attack, threat, seed), "batch_size": size}
    name, complete = task_name(label, attack_text(attack), threat, seed), has_images if save_images else None
    task = experiment.task(name, {"model": classifier}, config, shard_size=shard_size or size, complete=complete)
    watch, prepared = Watch(), prepared_once(experiment, attack, classifier)

    def attacked(shard: Shard) -> dict[str, Any]:
        found, images = attack_shard(prepared(), shard, attack, threat, seed, size, watch)
        if save_images:
            content = save({"images": images})
            write_whole(task.path(int(shard.ids[0]) // task.size, ".safetensors"), content)
            found["images"] = hashlib.sha256(content).hexdigest()
        return found

    shards = experiment.work(task, attacked, title=label, status=watch)
    found = summary(shards, method=interval)
    doubts = unreliable_notes(found["notes"], len(found["outcome"]), found["outcome"].count(ROBUST))
    result = RobustResult(
        label=label,
        model=model_name,
        **setting_of(experiment, attack, threat, seed),
        **found,
        unreliable=bool(doubts),
        stages=shard_stages(shards),
        early_stopped=len(joined(shards, "early_stopped")),
        interval_method=interval,
        data_digest=experiment.data_digest,
        change=change_of(classifier),
        dtype=dtype_of(classifier),
    )
    return experiment.finish(name, result)


def attack_shard(
    classifier: Classifier, shard: Shard, attack: Attack, threat: Threat, seed: int, batch_size: int, watch: Watch
) -> tuple[dict[str, Any], Tensor]:
    """What became of a shard's images, attacked batch by batch, ready for JSON, and the adversarial images."""
    parts, images = [], []
    for batch in shard.split(batch_size):
        started = time.perf_counter()
        result = attack.run(classifier, *batch[:2], threat=threat, seed=seed, sample_ids=batch.ids, watch=watch)
        part = {
            "outcome": result.outcome,
            "correct": len(batch.x) - result.outcome.count(MISCLASSIFIED),
            "early_stopped": batch.ids[result.early_stopped].tolist(),
            "stages": to_builtins(result.stages),
        }
        parts.append({**part, **spent(result, started)})
        images.append(result.images.cpu())
    found = {
        "correct": sum(part["correct"] for part in parts),
        **totals(parts),
        **{name: joined(parts, name) for name in ("outcome", "early_stopped")},
        "notes": [*to_builtins(output_notes(classifier, shard, attack, threat)), *joined(parts, "notes")],
        "stages": to_builtins(shard_stages(parts)),
    }
    return found, torch.cat(images)


def checked_attack(attack: AnyAttack, run: RunDir | None, identity: Mapping[str, Any] | None = None) -> Attack:
    """The attack of whatever stands for one; a function, or one among its settings, needs an identity in a run."""
    if run is not None and not identity and is_function(attack):
        raise InputError(
            "an attack that is a function, or that has a function or an object among its settings, cannot be told from "
            "another when a run is resumed; say what it is with identity={'attack': 'mine-v2'}, or make it an lf.Attack"
        )
    return as_attack(attack)


def output_notes(classifier: Classifier, shard: Shard, attack: Attack, threat: Threat) -> list[Note]:
    """What is suspicious about the model's outputs, random ones or a softmax, seen on the first images of the data
    alone, in 3 forwards that are not counted. A cascade such as `fast` looks by itself, and is not asked again."""
    if int(shard.ids[0]) != 0 or getattr(attack, "looks_at_outputs", False):
        return []
    x, y, ids = (part[:LOOKED_AT] for part in shard)
    state = AttackState(classifier, x, y, threat=threat, seed=0, sample_ids=ids)
    return model_notes(state, random_expected=getattr(attack, "eot_iter", 1) > 1)


def task_name(label: str, attack: str, threat: Threat | str, seed: int) -> str:
    """The name of an evaluation's shards and result in a run directory.

    >>> task_name("forged", "pgd:steps=50", Threat("linf", "8/255"), seed=0)
    'forged__pgd-steps=50__linf-8over255'
    """
    parts = [slug(part) for part in (label, attack, str(threat).replace("/", "over"))]
    return "__".join([*parts, *([f"seed-{seed}"] if seed else [])])


def attack_config(attack: Attack, threat: Threat, seed: int) -> dict[str, Any]:
    """What identifies an attack in a task."""
    return {"attack": attack_text(attack), "threat": {"norm": threat.norm, "eps": threat.eps}, "seed": seed}


def prepared_once(experiment: Experiment, attack: Attack, classifier: Classifier) -> Callable[[], Classifier]:
    """What the attack searches on, made when it is first asked for: a folded copy is made once, not per batch."""
    if not hasattr(attack, "prepared"):  # an attack of the user that only has `run`
        return lambda: classifier
    return functools.cache(lambda: attack.prepared(classifier, first_images(experiment)))


def first_images(experiment: Experiment) -> Tensor:
    """The images that folded copies are checked on: the first of the data, whatever shards are left to compute."""
    return experiment.read(range(min(CHECKED, len(experiment.data)))).x


@torch.no_grad()
def classified(classifier: Classifier, shard: Shard) -> tuple[Tensor, Tensor]:
    """The logits (N, K) of the clean images, and which of them (N,) are classified correctly."""
    logits = logits_of(classifier, shard.x, shard.ids)
    check_labels(shard.y, logits.shape[1])
    return logits, logits.argmax(dim=1) == shard.y


def unbroken(correct: Tensor) -> list[str]:
    return [ROBUST if right else MISCLASSIFIED for right in correct.tolist()]


def setting_of(experiment: Experiment, attack: Attack, threat: Threat, seed: int) -> dict[str, Any]:
    """What was run on which data: fields that results of attacks share."""
    threats = {"threat": str(threat), "norm": threat.norm, "eps": threat.eps}
    return {"data": experiment.data.name, "attack": attack_text(attack), **threats, "seed": seed}


def summary(parts: Sequence[Mapping[str, Any]], name: str = "outcome", method: Method = "clopper-pearson") -> Any:
    """What the parts add up to: fields that results of attacks share, of the outcomes that have that name."""
    outcome = tuple(joined(parts, name))
    notes = merge_notes([Note(**note) for note in joined(parts, "notes")], len(outcome))
    return {**accuracies(outcome, method), **totals(parts), "outcome": outcome, "notes": notes}


def accuracies(outcome: Sequence[str], method: Method = "clopper-pearson") -> dict[str, Any]:
    """Count, clean and robust accuracy, with intervals."""
    count = len(outcome)
    correct, robust = count - outcome.count(MISCLASSIFIED), outcome.count(ROBUST)
    return {
        "count": count,
        "clean_accuracy": correct / count,
        "clean_interval": interval_of(correct, count, method),
        "robust_accuracy": robust / count,
        "interval": interval_of(robust, count, method),
    }


def spent(result: AttackResult, started: float) -> dict[str, Any]:
    """The passes, seconds and notes of an attack, ready for JSON."""
    return {
        "forwards": int(result.forwards.sum()),
        "backwards": int(result.backwards.sum()),
        "seconds": time.perf_counter() - started,
        "notes": to_builtins(result.notes),
    }


def totals(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {name: sum(part[name] for part in parts) for name in ("forwards", "backwards", "seconds")}


def joined(parts: Sequence[Mapping[str, Any]], name: str) -> list[Any]:
    """One list of the lists that the parts have under that name."""
    return [item for part in parts for item in part[name]]


def shard_stages(parts: Sequence[Mapping[str, Any]]) -> tuple[Stage, ...]:
    """One stage per attack over all parts, each a mapping with its number of `correct` images and its `stages`."""
    return merge_stages([(int(part["correct"]), [Stage(**stage) for stage in part["stages"]]) for part in parts])


def has_images(task: Task, images: range, shard: Mapping[str, Any]) -> bool:
    """Whether the adversarial images of a finished shard are there, and are the ones it was written with."""
    try:
        content = task.path(images.start // task.size, ".safetensors").read_bytes()
    except FileNotFoundError:
        return False
    return hashlib.sha256(content).hexdigest() == shard.get("images")


def clean_accuracy(
    model: nn.Module,
    data: ImageSource,
    *,
    batch_size: int = BATCH_SIZE,
    label: str = "clean accuracy",
    show_progress: bool | None = None,
) -> CleanResult:
    """The share of `data` that `model` classifies correctly; `data` must carry labels."""
    check_eval(model)
    device, count = device_of(model), 0
    correct = torch.zeros((), dtype=torch.int64, device=device)
    with progress(label, image_count(data), show=show_progress) as step:
        for batch in batches(data, batch_size):
            if batch.labels is None:
                raise InputError("data must carry labels: pass a data set or an (images, labels) pair")
            ids = torch.arange(batch.first, batch.first + len(batch.images))
            shard = Shard(batch.images.to(device), batch.labels.to(device), ids)
            correct += classified(model, shard)[1].sum()
            count += len(batch.images)
            step(len(batch.images))
    found = int(correct)
    return CleanResult(count, found, found / count, clopper_pearson(found, count), change_of(model))
