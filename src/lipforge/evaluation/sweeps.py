"""Accuracy over many eps and attacks in one run: the layout of the paper's FGSM/PGD and CW tables."""

import itertools
import time
from collections.abc import Mapping, Sequence
from typing import Any

from lipforge.attacks import FGSM, AnyAttack, Attack, attack_text
from lipforge.batching import LabelledSource, as_data
from lipforge.errors import InputError
from lipforge.evaluation.robust import (
    checked_attack,
    classified,
    output_notes,
    prepared_once,
    spent,
    summary,
    task_name,
    totals,
    unbroken,
)
from lipforge.records import to_builtins
from lipforge.results import Note, SweepResult, SweepRow
from lipforge.runs import SHARD_SIZE, Experiment, RunDir, Shard, Watch, change_of, digest_of, slug
from lipforge.runs.identity import canonical
from lipforge.types import Classifier, Threat, check_threat


def sweep(
    classifiers: Mapping[str, Classifier],
    data: LabelledSource,
    attacks: Sequence[AnyAttack],
    threats: Sequence[Threat],
    *,
    carry: bool = True,
    run: RunDir | None = None,
    seed: int = 0,
    shard_size: int = SHARD_SIZE,
    show_progress: bool | None = None,
) -> SweepResult:
    """The accuracy of each classifier against each attack at each of `threats`, which share one norm."""
    if not classifiers or not attacks or not threats:
        raise InputError("classifiers, attacks and threats must each have at least one entry")
    for threat in threats:
        check_threat(threat)
    if len({threat.norm for threat in threats}) > 1:
        raise InputError(f"threats must share one norm, got {', '.join(map(str, threats))}")
    data, rising = as_data(data), sorted(threats, key=lambda threat: threat.eps)
    known = [checked_attack(attack, run) for attack in attacks]
    rows: list[SweepRow] = []
    for label, classifier in classifiers.items():
        experiment = Experiment.open(data, classifier, run=run, shard_size=shard_size, show_progress=show_progress)
        for attack in known:
            rows += _rows(experiment, label, classifier, attack, rising, seed=seed, carry=carry)
    result = SweepResult(
        rows=tuple(rows),
        carry=carry,
        norm=rising[0].norm,
        data=experiment.data.name,
        seed=seed,
        count=len(experiment.data),
        **totals([vars(row) for row in rows]),
        notes=tuple(suspicions(rows, known)),
    )
    return experiment.finish(sweep_name(result), result)


def sweep_name(result: SweepResult) -> str:
    """What a sweep is called in a run: other rows, images or seeds make another name."""
    about = [[row.label, row.attack, row.threat] for row in result.rows]
    attacks = "+".join(dict.fromkeys(row.attack for row in result.rows))
    setting = [about, canonical(result.data), result.count, result.seed, result.carry]
    return f"sweep__{slug(attacks)}__{digest_of(setting)[:8]}"


def _rows(
    experiment: Experiment,
    label: str,
    classifier: Classifier,
    attack: Attack,
    threats: Sequence[Threat],
    *,
    seed: int,
    carry: bool,
) -> list[SweepRow]:
    text, last = attack_text(attack), threats[-1]
    eps = [threat.eps for threat in threats]
    config = {"attack": text, "norm": last.norm, "eps": eps, "seed": seed, "carry": carry}
    task = experiment.task(f"sweep__{task_name(label, text, last, seed)}", {"model": classifier}, config)
    watch = Watch(lambda shard: {str(last): shard["eps"][-1]["outcome"]})
    prepared = prepared_once(experiment, attack, classifier)

    def swept(shard: Shard) -> dict[str, Any]:
        return {"eps": sweep_shard(prepared(), shard, attack, threats, seed, carry, watch)}

    shards = experiment.work(task, swept, title=f"{label}, {text}", status=watch)
    rows, change = [], change_of(classifier)
    for place, threat in enumerate(threats):
        parts = [shard["eps"][place] for shard in shards]
        carried = sum(part["carried"] for part in parts)
        rows.append(SweepRow(label, text, str(threat), threat.eps, carried=carried, change=change, **summary(parts)))
    return rows


def sweep_shard(
    classifier: Classifier,
    shard: Shard,
    attack: Attack,
    threats: Sequence[Threat],
    seed: int,
    carry: bool,
    watch: Watch,
) -> list[dict[str, Any]]:
    """For each eps, rising, what became of these images, ready for JSON; the clean images are classified once."""
    clean, correct = classified(classifier, shard)
    robust, outcome = correct.clone(), unbroken(correct)
    records: list[dict[str, Any]] = []
    for threat in threats:
        if not carry:
            robust, outcome = correct.clone(), unbroken(correct)
        started, at = time.perf_counter(), robust.nonzero().squeeze(1)
        carried = int((correct & ~robust).sum())
        x, y, ids = shard.at(at)
        result = attack.run(
            classifier, x, y, threat=threat, seed=seed, sample_ids=ids, clean_logits=clean[at],
            watch=lambda name: watch(f"{name}, {threat}"),  # noqa: B023  # called in this round only
        )  # fmt: skip
        robust[at] = ~result.broken
        for place, word in zip(at.tolist(), result.outcome, strict=True):
            outcome[place] = word
        records.append({"carried": carried, "outcome": list(outcome), **spent(result, started)})
    records[0]["notes"] = [*to_builtins(output_notes(classifier, shard, attack, threats[0])), *records[0]["notes"]]
    records[0]["forwards"] += len(shard.x)  # the clean images
    return records


def suspicions(rows: Sequence[SweepRow], attacks: Sequence[Attack]) -> list[Note]:
    """Where an accuracy rises with eps, and where one step breaks more images than many steps do."""
    one_step = {attack_text(attack) for attack in attacks if isinstance(attack, FGSM)}
    found = []
    for weak, strong in itertools.permutations(rows, 2):
        if weak.label != strong.label or sum(strong.robust) <= sum(weak.robust):
            continue
        larger = weak.attack == strong.attack and strong.eps > weak.eps
        longer = weak.eps == strong.eps and weak.attack in one_step and strong.attack not in one_step
        if larger or longer:
            text = (
                f"{weak.label}: {sum(strong.robust)} of {strong.count} images are robust to {strong.attack} at "
                f"{strong.threat}, but only {sum(weak.robust)} to {weak.attack} at {weak.threat}: masked gradients?"
            )
            found.append(Note("rises_with_eps" if larger else "one_step_stronger", text))
    return found
