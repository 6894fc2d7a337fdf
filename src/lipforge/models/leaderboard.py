"""RobustBench's own form: its `model_info` JSON written for our evaluations, and its leaderboards read."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path
from typing import Any

from lipforge.errors import DataError, InputError, missing_extra
from lipforge.records import read_json, write_json
from lipforge.results import RobustResult
from lipforge.text import eps_text, percent, share_text

THREATS = {"linf": "Linf", "l2": "L2"}
EPS = {
    ("cifar10", "Linf"): 8 / 255,
    ("cifar10", "L2"): 0.5,
    ("cifar100", "Linf"): 8 / 255,
    ("imagenet", "Linf"): 4 / 255,
}
"""The radius of each leaderboard of RobustBench."""
IMAGES = {"cifar10": 10_000, "cifar100": 10_000, "imagenet": 5_000}
"""How many test images RobustBench evaluates on."""
BY_HAND = ("link", "authors", "venue", "architecture", "additional_data")  # what lipforge cannot know
STANDARD = re.compile(r"autoattack(:fold=(true|false))?")
"""AutoAttack standard; searching on a folded copy changes no attack, another version or precision does."""
TAG = re.compile(r"</?(?:a|b|em|i|p|span|strong|su[bp])\b[^>]*>", re.IGNORECASE)
"""HTML in RobustBench's tables and `model_info`; "a < b" and a user's <name> are none."""
TITLES = {"CIFAR-10": "cifar10", "CIFAR-100": "cifar100", "ImageNet": "imagenet"}


@dataclass(frozen=True)
class LeaderboardEntry:
    """One model of a leaderboard. `robust_accuracy` is what RobustBench ranks by: an external evaluation where it has
    one, else AutoAttack's, or the accuracy under corruptions. `ranked` is false for an entry that has neither, whose
    `robust_accuracy` is the reported one of another attack; `footnote` says which."""

    model: str
    name: str
    clean_accuracy: float | None
    robust_accuracy: float | None
    ranked: bool
    architecture: str
    venue: str
    footnote: str
    source: str


def model_info(
    results: Sequence[RobustResult],
    *,
    dataset: str | None = None,
    number_forward_passes: int | None = None,
    additional_data: bool | None = None,
    name: str = "",
    authors: str = "",
    link: str = "",
    venue: str = "",
    architecture: str = "",
) -> dict[str, Any]:
    """The evaluations of one model, on the same images and at one radius, as RobustBench's `model_info`.

    `autoattack_acc` is there only if AutoAttack standard was run at the leaderboard's radius on all of its images, and
    the result is not unreliable. The lowest robust accuracy of all attacks is `reported`, and the footnote says by
    which attack and on how many images. What lipforge cannot know stays empty unless it is given.
    """
    first = _check(results)
    known = dataset or dataset_of(first.data)
    threat = THREATS[first.norm]
    if (known, threat) not in EPS:
        raise InputError(f"RobustBench has no leaderboard for {known}, {threat}; it has {_boards()}")
    lowest = min(results, key=lambda one: one.robust_accuracy)
    passes = 1 if first.change is None or first.change.tta is None else None
    info = {
        "link": link,
        "name": name or first.model,
        "authors": authors,
        "additional_data": additional_data,
        "number_forward_passes": passes if number_forward_passes is None else number_forward_passes,
        "dataset": known,
        "venue": venue,
        "architecture": architecture,
        "eps": eps_text(first.eps),
        "clean_acc": percent(first.clean_accuracy, 2),
        "reported": percent(lowest.robust_accuracy, 2),
    }
    official = [one for one in results if not why_unofficial(one, known)]
    if official:
        info["autoattack_acc"] = percent(official[0].robust_accuracy, 2)
    share = share_text(lowest.robust_accuracy, lowest.interval, 2)
    about = f"{lowest.label}: {lowest.attack}, {lowest.threat}, {share} %, n = {lowest.count}, seed {lowest.seed}"
    footnote = f"measured by lipforge, {about}"
    return {**info, "footnote": footnote, "unreliable": any(one.unreliable for one in results)}


def write_model_info(results: Sequence[RobustResult], folder: str | Path, passes: int | None = None) -> Path:
    """Write the `model_info` of one model where RobustBench would look for it: FOLDER/DATASET/THREAT/NAME.json. A label
    other than "base" is added to the name. What people have filled in there stays."""
    info, first = model_info(results, number_forward_passes=passes), results[0]
    name = first.model if first.label == "base" else f"{first.model}-{first.label}"
    path = Path(folder) / str(info["dataset"]) / THREATS[first.norm] / f"{re.sub(r'[^A-Za-z0-9._-]+', '-', name)}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    before = read_json(path) if path.exists() else {}
    write_json(path, info | {key: info[key] or before.get(key, info[key]) for key in BY_HAND})
    return path


def check_board(data: str, norm: str) -> None:
    """Raise unless RobustBench has a leaderboard for these images and this norm, at some radius."""
    if (dataset_of(data), THREATS.get(norm)) not in EPS:
        raise InputError(f"RobustBench has no leaderboard for {data} in {norm}; it has {_boards()}")


def why_unofficial(result: RobustResult, dataset: str | None = None) -> str:
    """Why a result is no `autoattack_acc` of RobustBench; nothing if it is."""
    known = dataset or dataset_of(result.data)
    eps = EPS.get((known, THREATS.get(result.norm, "")))
    if not STANDARD.fullmatch(result.attack):
        return f"the attack was {result.attack}, not AutoAttack standard (--attack autoattack)"
    if eps is None or abs(result.eps - eps) > 1e-6:
        return f"the threat was {result.threat}, but the leaderboards have {_boards()}"
    if result.count != IMAGES[known]:
        return f"{result.count:,} images were attacked, not all {IMAGES[known]:,} (leave out --limit)"
    if result.dtype not in ("", "float32"):
        return f"the model computed in {result.dtype}"
    return "the result is unreliable; see its notes" if result.unreliable else ""


def leaderboard_of(dataset: str, threat: str, folders: Sequence[str | Path] = ()) -> list[LeaderboardEntry]:
    """The models of a leaderboard such as ("cifar10", "Linf"), the most robust first; those without a rank at the end.

    They come from the table that the installed robustbench brings along, and from `folders` in the form of its
    `model_info` (FOLDER/cifar10/Linf/NAME.json): a clone's, or one that lipforge wrote. An entry in a folder replaces
    one of the same name.
    """
    if dataset not in IMAGES or threat not in ("Linf", "L2", "corruptions"):
        boards = ", ".join(f"{name}/{kind}" for name in IMAGES for kind in ("Linf", "L2", "corruptions"))
        raise InputError(f"leaderboard must be one of {boards}, got {dataset}/{threat}")
    found = {entry.model: entry for entry in _installed(dataset, threat, needed=not folders)}
    for folder in folders:
        paths = sorted((Path(folder) / dataset / threat).glob("*.json"))
        if not paths:
            raise DataError(
                f"no {dataset}/{threat}/*.json in {folder}; it must have the layout of RobustBench's model_info"
            )
        found |= {path.stem: read_model_info(path) for path in paths}
    return sorted(found.values(), key=lambda entry: (not entry.ranked, -(entry.robust_accuracy or 0.0)))


def read_model_info(path: str | Path) -> LeaderboardEntry:
    """One `model_info` file of RobustBench."""
    try:
        info = json.loads(Path(path).read_text())
    except (OSError, ValueError) as error:
        raise DataError(f"{path} must be a model_info file of RobustBench, and is no readable JSON: {error}") from None
    if not isinstance(info, dict) or "clean_acc" not in info:
        raise DataError(f"{path} must be a model_info file of RobustBench, but has no 'clean_acc'")
    ranked = [_share(info.get(key), path, key) for key in ("external", "autoattack_acc", "corruptions_acc",
                                                           "corruptions_acc_2d")]  # fmt: skip
    robust = next((share for share in ranked if share is not None), None)
    return LeaderboardEntry(
        model=Path(path).stem,
        name=_plain(str(info.get("name") or "")),
        clean_accuracy=_share(info["clean_acc"], path, "clean_acc"),
        robust_accuracy=_share(info.get("reported"), path, "reported") if robust is None else robust,
        ranked=robust is not None,
        architecture=_plain(str(info.get("architecture") or "")),
        venue=_plain(str(info.get("venue") or "")),
        footnote=_plain(str(info.get("footnote") or "")),
        source=str(Path(path).parents[2] if len(Path(path).parents) > 2 else path),
    )


def dataset_of(data: str) -> str:
    """The data set of RobustBench that a result's images are from; an error for any other."""
    found = re.fullmatch(r"(cifar10|cifar100)(?:-sample)?(:test)?(/.*)?", data)
    if found is None:
        raise InputError(
            f"data must be the test set of cifar10 or cifar100 for RobustBench, got {data}; for its images of ImageNet "
            'call lf.model_info(results, dataset="imagenet")'
        )
    return found[1]


def _check(results: Sequence[RobustResult]) -> RobustResult:
    if not results:
        raise InputError("results must be at least one evaluation, got none")
    first = results[0]
    if first.norm not in THREATS:
        raise InputError(f"RobustBench has leaderboards in {', '.join(THREATS)}, got {first.norm}")
    for one in results:
        for field in ("model", "label", "norm", "eps", "data", "data_digest"):
            if getattr(one, field) != getattr(first, field):
                raise InputError(f"results must be of one model on the same images, got another {field}")
    return first


def _installed(dataset: str, threat: str, *, needed: bool) -> list[LeaderboardEntry]:
    """The table in the description of the installed robustbench, which brings no `model_info` files along."""
    try:
        package = metadata("robustbench")
    except PackageNotFoundError:
        if needed:
            raise missing_extra("robustbench", "zoo") from None
        return []
    source, here, found = f"robustbench {package['Version']}", ("", ""), []
    for line in str(package.json["description"]).splitlines():
        if line.startswith("### "):
            here = (TITLES.get(line.strip("# "), ""), "")
        elif line.startswith("#### "):
            kind = line.strip("# ")
            here = (here[0], kind.split(",")[0] if kind.startswith(("Linf", "L2")) else "corruptions")
        elif here == (dataset, threat) and line.startswith("|") and "%" in line:
            cells = [_plain(cell) for cell in line.strip("| \n").split(" | ")]
            if len(cells) != 7:
                raise DataError(f"the table of {source} has another form than that of 1.1.1: {line!r}")
            _, model, paper, clean, robust, architecture, venue = cells
            title = re.sub(r"\]\(.*\)$", "", paper.strip("*").lstrip("["))
            first, second = (float(text.strip("%")) / 100 for text in (clean, robust))
            entry = LeaderboardEntry(model.strip("*"), title, first, second, True, architecture, venue, "", source)
            found.append(entry)
    return found


def _plain(text: str) -> str:
    """A text without HTML tags; a line break becomes a space.

    >>> _plain("<sub><sup>**Wong2020Fast**</sup></sub>"), _plain("ResNet-50 <br/> (3x ensemble)")
    ('**Wong2020Fast**', 'ResNet-50 (3x ensemble)')
    """
    return " ".join(TAG.sub("", re.sub(r"<br\s*/?>", " ", text, flags=re.IGNORECASE)).split())


def _share(value: Any, path: str | Path, key: str) -> float | None:
    """A percentage as RobustBench writes it, "56.20", or a bare fraction, as a few of its files have; None if empty."""
    if value is None or value == "":
        return None
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise DataError(f"{path}: {key} must be a percentage such as '56.20', got {value!r}") from None
    share = number if not isinstance(value, str) and number <= 1 else number / 100
    if not 0 <= share <= 1:
        raise DataError(f"{path}: {key} must lie between 0 and 100, got {value!r}")
    return share


def _boards() -> str:
    return ", ".join(f"{dataset} {threat} {eps_text(eps)}" for (dataset, threat), eps in EPS.items())
