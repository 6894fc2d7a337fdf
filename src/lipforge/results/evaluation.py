"""What attacks and evaluations found."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from lipforge.records import Share
from lipforge.results.change import Change
from lipforge.statistics import Method
from lipforge.text import share_text
from lipforge.types import Norm

ROBUST, MISCLASSIFIED = "robust", "misclassified"
"""The outcomes of an image that no attack broke: still classified correctly, and wrong before any attack."""
SQUARE_SHARE = 0.002  # images that Square may break after gradient attacks before it is worth a note, as in AutoAttack

POINT = 0.01
UNRELIABLE: dict[str, tuple[float, float]] = {
    "random_outputs": (0.0, 0.0),
    "softmax": (0.0, 0.0),
    "adaptive_model": (0.0, 0.0),
    "square": (POINT, 0.0),
    "probe": (POINT / 16, 0.1 / 16),  # `fast` probes one image in 16
    "boundary": (POINT / 4, 0.1 / 4),  # and walks along the boundary from one in 4
    "zero_gradient": (POINT, 0.1),
    "masked_gradients": (POINT, 0.1),
    "outside": (POINT, 0.1),  # points that an attack of another tool lost
}
"""The notes that make a robust accuracy unreliable, if they are about more than these shares of all images and of the
robust ones: a point or more may be missing, and one odd image among the robust ones is not a defence."""
UNRELIABLE_EXIT = 4  # the exit code of a command whose result is unreliable


class PerOutcome:
    """What follows from the outcome of each image."""

    outcome: tuple[str, ...]

    @property
    def robust(self) -> list[bool]:
        return [word == ROBUST for word in self.outcome]

    @property
    def robust_count(self) -> int:
        return self.outcome.count(ROBUST)


@dataclass(frozen=True)
class Note:
    """A reason not to trust a number: its kind, the images it is about out of how many, and what to say of them.

    >>> str(Note("zero_gradient", "had a gradient of exactly 0", count=3, total=100))
    '3 of 100 images had a gradient of exactly 0'
    """

    kind: str
    text: str
    count: int | None = None
    total: int | None = None

    def __str__(self) -> str:
        return self.text if self.count is None else f"{self.count} of {self.total} images {self.text}"


def merge_notes(notes: Iterable[Note], total: int) -> tuple[Note, ...]:
    """Each note once, with its images added up and out of `total`; a few that Square broke are not worth a note.

    >>> merge_notes([Note("a", "x", 1, 10), Note("a", "x", 2, 10), Note("square", "y", 1, 10)], total=500)
    (Note(kind='a', text='x', count=3, total=500),)
    """
    counts: dict[tuple[str, str], int | None] = {}
    for note in notes:
        key = note.kind, note.text
        counts[key] = None if note.count is None else note.count + (counts.get(key) or 0)
    return tuple(
        Note(kind, text, count, None if count is None else total)
        for (kind, text), count in counts.items()
        if kind != "square" or (count or 0) > SQUARE_SHARE * total
    )


def unreliable_notes(notes: Iterable[Note], count: int, robust: int) -> tuple[Note, ...]:
    """The notes that make a robust accuracy of `robust` of `count` images unreliable: overstated by more than a point,
    perhaps. One of a point or less cannot be.

    >>> unreliable_notes([Note("masked_gradients", "are masked", 5, 100)], count=100, robust=30)
    (Note(kind='masked_gradients', text='are masked', count=5, total=100),)
    >>> unreliable_notes([Note("masked_gradients", "are masked", 2, 100)], count=100, robust=30)
    ()
    """

    def condemns(note: Note) -> bool:
        of_all, of_robust = UNRELIABLE.get(note.kind, (1.0, 1.0))
        return note.kind in UNRELIABLE and (
            note.count is None or (note.count > of_all * count and note.count > of_robust * robust)
        )

    return tuple(note for note in notes if condemns(note)) if robust > POINT * count else ()


@dataclass(frozen=True)
class Stage:
    """What one attack of a cascade left: images that are still robust, and the passes and seconds it took in all."""

    attack: str
    robust: int
    forwards: int
    backwards: int
    seconds: float


StageKey = tuple[str, int]  # an attack's name, and how often it came before in its cascade, which may hold one twice


def numbered(stages: Iterable[Stage]) -> dict[StageKey, Stage]:
    """Stages by their key, in their order."""
    found: dict[StageKey, Stage] = {}
    for stage in stages:
        found[stage.attack, sum(name == stage.attack for name, _ in found)] = stage
    return found


def common_order(lists: Iterable[Sequence[StageKey]]) -> list[StageKey]:
    """All keys of several cascades, each after those that come before it in its list.

    >>> common_order([[("a", 0), ("d", 0)], [("a", 0), ("b", 0), ("d", 0)]])
    [('a', 0), ('b', 0), ('d', 0)]
    """
    order: list[StageKey] = []
    for keys in lists:
        place = 0
        for key in keys:
            if key not in order:
                order.insert(place, key)
            place = order.index(key) + 1
    return order


def merge_stages(parts: Sequence[tuple[int, Iterable[Stage]]]) -> tuple[Stage, ...]:
    """One stage per attack over all parts, each with its number of correct images and its stages. Where no image was
    robust any more, or nothing looked suspicious, a part has fewer stages: it enters the ones that it lacks with what
    it had left."""
    lists = [numbered(stages) for _, stages in parts]
    left = [correct for correct, _ in parts]
    merged = []
    for key in common_order([list(stages) for stages in lists]):
        left = [stages[key].robust if key in stages else before for stages, before in zip(lists, left, strict=True)]
        here = [stages[key] for stages in lists if key in stages]
        forwards, backwards = sum(stage.forwards for stage in here), sum(stage.backwards for stage in here)
        merged.append(Stage(key[0], sum(left), forwards, backwards, sum(stage.seconds for stage in here)))
    return tuple(merged)


@dataclass(frozen=True)
class CleanResult:
    """How many of `count` images were classified correctly, and the 95 % interval of the accuracy."""

    kind: ClassVar[str] = "clean"
    count: int
    correct: int
    accuracy: Share
    interval: tuple[Share, Share]
    change: Change | None = None

    def __str__(self) -> str:
        return f"{share_text(self.accuracy, self.interval, 2)}, n = {self.count}"


@dataclass(frozen=True)
class RobustResult(PerOutcome):
    """How a classifier fared against one attack.

    `outcome` has for each image "robust", "misclassified" (before any attack) or the attack that broke it. Accuracies
    are shares of all `count` images, with 95 % intervals. `seconds` are summed over shards: device-seconds.
    `early_stopped` counts robust images that `fast` stopped attacking before its last round. `notes` are reasons not to
    trust the result, and it is `unreliable` if one of them may be worth a point or more: robust accuracy is then
    probably overstated. `data_digest` identifies the images, and `change` what lipforge had changed in the model.
    `dtype` is that of the model's weights, "" where it is not known.
    """

    kind: ClassVar[str] = "robust"
    label: str
    model: str
    data: str
    attack: str
    threat: str
    norm: Norm
    eps: float
    seed: int
    count: int
    clean_accuracy: Share
    clean_interval: tuple[Share, Share]
    robust_accuracy: Share
    interval: tuple[Share, Share]
    outcome: tuple[str, ...]
    stages: tuple[Stage, ...]
    forwards: int
    backwards: int
    seconds: float
    early_stopped: int
    notes: tuple[Note, ...]
    interval_method: Method = "clopper-pearson"
    data_digest: str = ""
    unreliable: bool = False
    change: Change | None = None
    dtype: str = ""

    @property
    def attack_text(self) -> str:
        """The attack, marked if what it found is unreliable."""
        return self.attack + (" (unreliable)" if self.unreliable else "")

    @property
    def robust_text(self) -> str:
        """Robust accuracy in percent with its interval, marked if it is unreliable."""
        return share_text(self.robust_accuracy, self.interval) + (" unreliable" if self.unreliable else "")

    def __str__(self) -> str:
        clean = share_text(self.clean_accuracy, self.clean_interval)
        attacked = f"{self.attack} {self.threat} {self.robust_text}"
        return f"{self.label}: clean {clean}, {attacked}, n = {self.count}, seed {self.seed}"


@dataclass(frozen=True)
class SweepRow(PerOutcome):
    """One classifier against one attack at one eps, with fields as in `RobustResult`; `carried` of the broken images
    were broken at a smaller eps already and not attacked again."""

    label: str
    attack: str
    threat: str
    eps: float
    count: int
    clean_accuracy: Share
    clean_interval: tuple[Share, Share]
    robust_accuracy: Share
    interval: tuple[Share, Share]
    carried: int
    forwards: int
    backwards: int
    seconds: float
    outcome: tuple[str, ...]
    notes: tuple[Note, ...] = ()
    change: Change | None = None


@dataclass(frozen=True)
class SweepResult:
    """All rows: classifier by classifier, attack by attack, eps rising; `notes` are reasons not to trust them.

    With `carry`, an image broken at one eps counts as broken at every larger one, whose ball has the same point:
    accuracies fall with eps by construction. Without it every eps is attacked afresh, as in the paper, and an accuracy
    that rises with eps is a sign of masked gradients.
    """

    kind: ClassVar[str] = "sweep"
    rows: tuple[SweepRow, ...]
    carry: bool
    norm: Norm
    data: str
    seed: int
    count: int
    forwards: int
    backwards: int
    seconds: float
    notes: tuple[Note, ...]

    @property
    def all_notes(self) -> tuple[str, ...]:
        """The notes on all rows together, and those on each row, once."""
        of_rows = (f"{row.label}, {row.attack} {row.threat}: {note}" for row in self.rows for note in row.notes)
        return tuple(dict.fromkeys([*map(str, self.notes), *of_rows]))


@dataclass(frozen=True)
class TransferResult(PerOutcome):
    """How a target fared against images crafted on a source, with 95 % intervals.

    `source_robust_accuracy` is the source's own accuracy under the attack and the refinement, `robust_accuracy` the
    target's on the images crafted for the source. Of the `shared` images that both classify correctly and that are
    broken on the source, `transferred` are broken on the target too. Broken on the target, the `outcome` is "transfer".
    """

    kind: ClassVar[str] = "transfer"
    source: str
    target: str
    attack: str
    threat: str
    norm: Norm
    eps: float
    refine: int
    data: str
    seed: int
    count: int
    source_clean_accuracy: Share
    source_robust_accuracy: Share
    source_interval: tuple[Share, Share]
    clean_accuracy: Share
    clean_interval: tuple[Share, Share]
    robust_accuracy: Share
    interval: tuple[Share, Share]
    shared: int
    transferred: int
    forwards: int
    backwards: int
    seconds: float
    outcome: tuple[str, ...]
    source_outcome: tuple[str, ...]
    notes: tuple[Note, ...] = ()
    name: str = ""  # of this result, and of its shards, in a run directory
    source_change: Change | None = None
    target_change: Change | None = None

    def __str__(self) -> str:
        return (
            f"{self.source} -> {self.target}: {share_text(self.robust_accuracy, self.interval)} under {self.attack} "
            f"{self.threat} crafted on {self.source}; {self.transferred} of {self.shared} images that are broken on "
            f"{self.source} are broken on {self.target}, n = {self.count}"
        )


@dataclass(frozen=True)
class Estimate:
    """The predicted cost of an evaluation, and what the prediction rests on.

    `forwards`, with one for every backward pass, and `backwards` are passes per image, means over the probe; rates are
    images per second. `interval` is the 95 % interval of `device_seconds` from the spread within the probe alone.
    """

    kind: ClassVar[str] = "estimate"
    label: str
    model: str
    attack: str
    threat: str
    count: int
    probe: int
    forwards: float
    backwards: float
    forward_rate: float
    gradient_rate: float
    device_seconds: float
    interval: tuple[float, float]
    devices: int
    wall_seconds: float
    assumptions: tuple[str, ...]
    change: Change | None = None
