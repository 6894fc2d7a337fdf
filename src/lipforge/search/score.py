"""From the shards of a search to scores, and from scores to a choice with its reason."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from lipforge.errors import import_extra
from lipforge.evaluation.plots import check_picture
from lipforge.evaluation.robust import joined
from lipforge.results import ROBUST, Note, RatioScore, SearchResult, Setting, merge_notes
from lipforge.results.search import Status, best_of
from lipforge.search.screen import COUNTS, TRANSFER, Pending, Records
from lipforge.statistics import clopper_pearson, paired
from lipforge.text import ratio_text

STOP_BELOW = 0.01  # a ratio worse than the best is stopped after a round if McNemar's exact p-value is below this


def label_of(setting: Setting) -> str:
    """A setting as people write it.

    >>> label_of(0.0), label_of(2**-7), label_of({"layer1.*": 2**-7, "layer2.*": 0.0})
    ('base', '2^-7', 'layer1.*=2^-7,layer2.*=0')
    """
    if isinstance(setting, Mapping):
        return ",".join(f"{name}={ratio_text(ratio)}" for name, ratio in setting.items())
    return ratio_text(setting) if setting else "base"


def pending_images(shards: Sequence[Records]) -> list[int]:
    return sorted({image for shard in shards for record in shard.values() for image in record["pending"]})


def pending_of(shards: Sequence[Records], label: str) -> Pending:
    """What the screening of all shards left of one candidate."""
    records = [shard[label] for shard in shards]
    return Pending(
        {record["first"] + place: word for record in records for place, word in enumerate(record["outcome"])},
        *(frozenset(joined(records, name)) for name in ("pending", "drawn")),
    )


def final_records(shards: Sequence[Records], finished: Sequence[Records], pending: Sequence[int], label: str) -> Any:
    """The records of one candidate from both passes, with outcomes and the number of skipped images as they ended."""
    late = dict(zip(pending, joined([shard[label] for shard in finished], "outcome"), strict=True))
    records = []
    for record in (shard[label] for shard in shards):
        first = record["first"]
        outcome = [late.get(first + place, word) for place, word in enumerate(record["outcome"])]
        skipped = sum(outcome[image - first] == ROBUST for image in record["skipped"])
        records.append({**record, "outcome": outcome, "skipped": skipped})
    return records + [{**shard[label], "outcome": [], "skipped": 0} for shard in finished]


def clean_score(setting: Setting, records: Sequence[Mapping[str, Any]]) -> RatioScore:
    correct = joined(records, "correct")
    count, right, seconds = len(correct), sum(correct), sum(record["seconds"] for record in records)
    status: Status = "not attacked" if setting else "base"
    interval = clopper_pearson(right, count)
    return RatioScore(
        setting, label_of(setting), status, right / count, interval, clean_count=count, forwards=count, seconds=seconds
    )


def attacked_score(
    score: RatioScore, records: Sequence[Mapping[str, Any]], base: Sequence[bool], count: int
) -> RatioScore:
    """The score with what its records say; `base` are the robust images of ratio 0, `count` how many there are."""
    outcome = tuple(joined(records, "outcome"))
    robust = [word == ROBUST for word in outcome]
    counts = {name: sum(record[name] for record in records) for name in (*COUNTS, "skipped")}
    for cost in ("forwards", "backwards", "seconds"):  # on top of what the clean accuracy took
        counts[cost] += getattr(score, cost)
    status: Status = "base" if not score.ratio else "attacked" if len(outcome) == count else "stopped"
    return replace(
        score,
        status=status,
        count=len(outcome),
        outcome=outcome,
        robust_accuracy=sum(robust) / len(robust),
        interval=clopper_pearson(sum(robust), len(robust)),
        notes=merge_notes([Note(**note) for note in joined(records, "notes")], counts["attacked"]),
        against_base=paired(base[: len(robust)], robust) if score.ratio else None,
        **counts,
    )


def with_neighbours(scores: Sequence[RatioScore]) -> list[RatioScore]:
    """Of scores in the order of their ratios, the best clean one first, then its neighbours."""
    best = max(range(len(scores)), key=lambda place: (scores[place].clean_accuracy, -place))
    return [scores[place] for place in (best, best - 1, best + 1) if 0 <= place < len(scores)]


def still_running(scores: Sequence[RatioScore], records: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[RatioScore]:
    """The scores worth another round: the base, the best ratio so far, and all that chance may have put behind it."""
    robust = {score.label: [word == ROBUST for word in joined(records[score.label], "outcome")] for score in scores}
    best = max(scores[1:], key=lambda score: sum(robust[score.label]))
    return [
        score
        for score in scores
        if score in (scores[0], best) or paired(robust[best.label], robust[score.label]).p_value >= STOP_BELOW
    ]


def choose(scores: Sequence[RatioScore]) -> tuple[Setting, str]:
    """The setting to use, and one sentence that says why, with counts."""
    base, best = scores[0], best_of(scores)
    difference = best.against_base
    assert difference is not None
    rest = [score for score in scores[1:] if score.outcome and score is not best]
    others = ", ".join(f"{score.robust_count} of {score.count} at {score.label}" for score in rest)
    found = (
        f"{best.robust_count} of {best.count} images are robust at {best.label}, {base.robust_count} at base "
        f"(gained {difference.gained}, lost {difference.lost}, p = {difference.p_value:.2g})"
        + (f"; {others}" if others else "")
    )
    if best.robust_count <= base.robust_count:
        return 0.0, f"chose 0, no forging: no ratio keeps more images robust than base; {found}"
    caution = "" if difference.decided else ", though with this many images that may be chance"
    if best.robust_count - best.unsure <= base.robust_count:
        caution += f", and up to {best.unsure} of its skipped images may be broken"
    return best.ratio, f"chose {best.label}: it keeps the most images robust{caution}; {found}"


def search_notes(scores: Sequence[RatioScore]) -> list[Note]:
    """What a reader should know before trusting the scores; what the attacks noted is in each score."""
    found = []
    for score in scores:
        rechecked = f"{score.rechecked_broken} of {score.rechecked} rechecked images were broken"
        if score.rechecked_broken:
            text = f"{rechecked}, so its robust accuracy is too high; skip_above=None attacks every image"
        elif score.skipped and score.rechecked:
            text = f"{score.skipped} images were skipped; {rechecked}, so up to {score.unsure} more may be (95 %)"
        elif score.skipped:
            text = f"{score.skipped} images were skipped and none of their kind was rechecked: all may be broken"
        else:
            continue
        found.append(Note("skipped", f"{score.label}: {text}"))
    return [*found, Note("selection", "the choice was made on these images: measure the chosen ratio on others")]


def with_base(scores: Sequence[RatioScore], base: RatioScore) -> list[RatioScore]:
    """The scores with what another search broke on the base counted too, each compared with the base as it is now.
    `base` is the base after that search, with the cost of both."""
    pairs = zip(scores[0].outcome, base.outcome, strict=True)
    outcome = tuple(then if now == ROBUST else now for now, then in pairs)
    robust = [word == ROBUST for word in outcome]
    accuracy, interval = sum(robust) / len(robust), clopper_pearson(sum(robust), len(robust))
    transferred = sum(word.startswith(TRANSFER) for word in outcome)
    found = [replace(base, outcome=outcome, robust_accuracy=accuracy, interval=interval, transferred=transferred)]
    for score in scores[1:]:
        against = paired(robust[: score.count], score.robust) if score.outcome else None
        found.append(replace(score, against_base=against))
    return found


def plot_tradeoff(result: SearchResult, path: str | Path) -> None:
    """Save clean against robust accuracy of every attacked ratio, with 95 % intervals, as .png, .svg or .pdf."""
    check_picture(path)
    figure = import_extra("matplotlib.figure", "plots").Figure(figsize=(6, 4), layout="constrained")
    axes = figure.add_subplot()
    for score in result.scores:
        if score.robust_accuracy is None or score.interval is None:
            continue
        x, y = 100 * score.clean_accuracy, 100 * score.robust_accuracy
        across = [[abs(x - 100 * bound)] for bound in score.clean_interval]
        up = [[abs(y - 100 * bound)] for bound in score.interval]
        chosen, base = score.ratio == result.chosen, score.status == "base"
        colour = "tab:red" if chosen else "tab:gray" if base else "tab:blue"
        axes.errorbar(x, y, across, up, "s" if base else "o", color=colour, capsize=2, elinewidth=0.7)
        words = f"{score.label}{' (chosen)' if chosen else ''}{' (stopped)' if score.status == 'stopped' else ''}"
        axes.annotate(words, (x, y), xytext=(5, 5), textcoords="offset points", fontsize=8)
    axes.set_xlabel("clean accuracy, %")
    axes.set_ylabel("robust accuracy, %")
    axes.set_title(f"{result.attack} {result.threat}, {result.metric}, n = {result.count}", fontsize=9)
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
