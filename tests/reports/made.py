"""Run directories as evaluations leave them, with every kind of result, made in a moment instead of measured."""

import random
from pathlib import Path
from typing import Any

import torch

from lipforge.attacks import Stage
from lipforge.data import load_data
from lipforge.evaluation import RobustResult, clopper_pearson
from lipforge.records import write_json
from lipforge.reports import Gallery, make_gallery
from lipforge.runs import RunDir

COUNT = 200
ATTACKS = ("apgd:loss=ce", "apgd-t", "fab-t", "square")
NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def robust(label: str, took: tuple[int, ...], wrong: int, *, seed: int = 1, **changes: Any) -> RobustResult:
    """An evaluation in which each attack of the cascade took so many images."""
    words = ["misclassified"] * wrong + [a for a, number in zip(ATTACKS, took, strict=True) for _ in range(number)]
    words += ["robust"] * (COUNT - len(words))
    random.Random(seed).shuffle(words)
    right, left = COUNT - wrong, COUNT - wrong
    stages = [Stage("clean", right, COUNT, 0, 0.4)]
    for number, (attack, gone) in enumerate(zip(ATTACKS, took, strict=True)):
        left -= gone
        stages.append(Stage(attack, left, 8000 * (number + 1), 7000 if attack != "square" else 0, 11.5 * (number + 1)))
    fields: dict[str, Any] = {
        "label": label,
        "model": "cifar10-resnet",
        "data": "cifar10:test",
        "attack": "autoattack",
        "threat": "linf 8/255",
        "norm": "linf",
        "eps": 8 / 255,
        "seed": 0,
        "count": COUNT,
        "clean_accuracy": right / COUNT,
        "clean_interval": clopper_pearson(right, COUNT),
        "robust_accuracy": left / COUNT,
        "interval": clopper_pearson(left, COUNT),
        "outcome": tuple(words),
        "stages": tuple(stages),
        "forwards": sum(stage.forwards for stage in stages),
        "backwards": sum(stage.backwards for stage in stages),
        "seconds": sum(stage.seconds for stage in stages),
        "given_up": 0,
        "notes": (),
    }
    return RobustResult(**(fields | changes))


def share(part: int, count: int = COUNT) -> dict[str, Any]:
    return {"robust_accuracy": part / count, "interval": clopper_pearson(part, count), "count": count}


def paired(base: int, forged: int, gained: int, lost: int, interval: tuple[float, float], p: float) -> dict[str, Any]:
    assert forged - base == gained - lost
    return {
        "base_accuracy": base / COUNT,
        "forged_accuracy": forged / COUNT,
        "count": COUNT,
        "gained": gained,
        "lost": lost,
        "difference": (forged - base) / COUNT,
        "interval": interval,
        "p_value": p,
        "robust_both": base - lost,
    }


def audit(verdict: str = "not real") -> dict[str, Any]:
    rows = [("plain: autoattack", 66, 73), ("identity backward", 66, 67), ("smooth backward", 66, 66),
            ("unforged gradients", 66, 65), ("refined from the other side", 65, 64), ("longer", 65, 63)]  # fmt: skip
    checks = [("white box at least as strong as black box", True, "plain leaves 22 of 64, square 30; alone 0"),
              ("iterative at least as strong as one step", False, "FGSM leaves 27 of 64, PGD with 20 steps 29"),
              ("certified accuracy no lower than the base's", None, "the run has no certificates")]  # fmt: skip
    return {
        "verdict": verdict,
        "sentence": f"{verdict}: plain attacks show +3.5 points [+0.6, +6.4] (n=200, 8 gained, 1 lost), but it is "
        "-1.0 points [-3.2, +1.1] (n=200, 1 gained, 3 lost) under all attacks together",
        "doubts": ["3 of 200 images were given up before the last round"],
        "model": "cifar10-resnet",
        "data": "cifar10:test",
        "threat": "linf 8/255",
        "norm": "linf",
        "eps": 8 / 255,
        "seed": 0,
        "count": COUNT,
        "plain_attack": "autoattack:version=fast",
        "margin": 0.01,
        "images_needed": None,
        "clean": paired(136, 137, 2, 1, (-0.02, 0.03), 1.0),
        "plain": paired(66, 73, 8, 1, (0.006, 0.064), 0.039),
        "union": paired(65, 63, 1, 3, (-0.032, 0.011), 0.625),
        "rows": [{"attack": a, "base": b, "candidate": c, "difference": (c - b) / COUNT} for a, b, c in rows],
        "checks": [{"name": n, "passed": p, "evidence": e} for n, p, e in checks],
        "base_effort": {"forwards": 801234, "backwards": 612345, "per_standing": 4012.0},
        "candidate_effort": {"forwards": 811111, "backwards": 622222, "per_standing": 4044.0},
        "base_outcome": [],
        "candidate_outcome": [],
        "notes": ["2 of 200 images had an input gradient of exactly 0"],
        "seconds": 341.0,
    }


def analysis(sites: int = 16) -> dict[str, Any]:
    draw = random.Random(3)
    layers = []
    for place in range(sites):
        depth, bound = place / sites, 4.0 + 6 * draw.random()
        plain, gain = 0.82 + 0.12 * draw.random(), 1.4 - 0.6 * depth + 0.2 * draw.random()
        layers.append({
            "name": f"layer{1 + place // 4}.{place // 2 % 2}.conv{1 + place % 2}",
            "layer": "Conv2d",
            "bound": bound,
            "threshold": bound / 128,
            "max_slope": 1.0,
            "jump": bound / 128,
            "zero_clean": 0.4 + 0.3 * depth,
            "zero_adversarial": 0.4 + 0.29 * depth,
            "suppressed_clean": 0.03 + 0.1 * depth + 0.02 * draw.random(),
            "suppressed_adversarial": 0.028 + 0.095 * depth + 0.02 * draw.random(),
            "sigma": 3.2 + draw.random(),
            "sigma_residual": 1e-6,
            "ratio_active": {"mean": plain, "worst": min(1.0, plain + 0.04)},
            "ratio_forged": {"mean": plain - 0.004, "worst": min(1.0, plain + 0.036)},
            "gershgorin": 9.0,
            "gershgorin_forged": {"mean": 8.0, "worst": 8.5},
            "gain_plain": {"mean": gain, "worst": 1.7 * gain},
            "gain_forged": {"mean": 1.01 * gain, "worst": 1.8 * gain},
        })  # fmt: skip
    spread = {"mean": 3.1, "worst": 8.4}
    return {
        "model": "cifar10-resnet",
        "data": "cifar10:test",
        "attack": "pgd:steps=20",
        "mask": "step, ratio 2^-7",
        "images": 64,
        "spectral_images": 8,
        "layers": layers,
        "product": {"sites": sites, "log10_plain": 8.6, "log10_active": 7.4, "log10_forged": 7.35},
        "network": {f"{kind}_{view}": spread for kind in ("gain", "jacobian") for view in ("plain", "forged")},
        "notes": ["a step mask jumps at its threshold, so the forged sites have no Lipschitz constant"],
    }


def certificate(label: str, left: tuple[int, ...]) -> dict[str, Any]:
    curve = [
        {"radius": place * 0.125, "certified": n, "accuracy": n / 100, "interval": clopper_pearson(n, 100)}
        for place, n in enumerate(left)
    ]
    return {"label": label, "model": "cifar10-resnet", "data": "cifar10:test", "sigma": 0.25, "n0": 100, "n": 1000,
            "alpha": 0.001, "seed": 0, "only_correct": False, "count": 100, "abstained": 7, "forwards": 110000,
            "seconds": 95.0, "curve": curve, "images": []}  # fmt: skip


def search() -> dict[str, Any]:
    scores = [(0.0, "base", 137, 66), (2**-8, "2^-8", 137, 67), (2**-7, "2^-7", 138, 68), (2**-6, "2^-6", 136, 70),
              (2**-5, "2^-5", 120, None)]  # fmt: skip
    return {
        "chosen": 2**-6,
        "reason": "chose 2^-6: it keeps the most images, which this number of images cannot tell from chance",
        "scores": [
            {"ratio": ratio, "label": label, "clean_accuracy": clean / COUNT, "clean_count": COUNT,
             "clean_interval": clopper_pearson(clean, COUNT), "count": COUNT if left else 0,
             "status": "base" if not ratio else "attacked" if left else "not attacked",
             "robust_accuracy": left and left / COUNT, "interval": left and clopper_pearson(left, COUNT),
             "against_base": paired(66, left, left - 66, 0, (-0.01, 0.03), 0.5) if left and ratio else None}
            for ratio, label, clean, left in scores
        ],
        "metric": "union",
        "attack": "apgd:loss=margin",
        "threat": "linf 8/255",
        "data": "cifar10:train",
        "notes": ["the choice was made on these images: measure the chosen ratio again on others"],
    }  # fmt: skip


def sweep() -> dict[str, Any]:
    left = {"fgsm": (150, 122, 86, 40, 14, 6), "pgd": (150, 118, 72, 18, 1, 0), "cw": (150, 117, 70, 16, 1, 0)}
    return {
        "points": [
            {"label": label, "attack": attack, "threat": f"linf {eps}/255", "eps": eps / 255, **share(part + more)}
            for label, more in (("base", 0), ("forged", 3))
            for attack, parts in left.items()
            for eps, part in zip((1, 4, 8, 16, 32, 64), parts, strict=True)
        ]
    }


def gallery(count: int = 8) -> Gallery:
    """Real images with random perturbations, half of them said to fool the model."""
    x, y = load_data("cifar10-sample:test").batch(range(count))
    noise = torch.randint(0, 2, x.shape, generator=torch.Generator().manual_seed(0)) * 2.0 - 1
    after = [int(label) if place % 2 else (int(label) + 3) % 10 for place, label in enumerate(y)]
    adversarial = (x + 8 / 255 * noise).clamp(0, 1)
    return make_gallery(x, adversarial, y, y, after, class_names=NAMES, count=count, title="PGD, linf 8/255")


def full_run(path: Path, verdict: str = "not real") -> Path:
    """A run directory with every kind of result."""
    with RunDir.open(path) as run:
        run.task("base__autoattack__linf-8over255", {"attack": "autoattack", "seed": 0}, COUNT, 100)
        run.write_result("base__autoattack__linf-8over255", robust("base", (52, 16, 1, 0), 64))
        note = "2 of 200 images had an input gradient of exactly 0"
        run.write_result("forged__autoattack__linf-8over255", robust("forged", (44, 18, 1, 1), 63, notes=(note,)))
        run.write_result("gallery", gallery())
    plain = {"audit": audit(verdict), "analysis": analysis(), "search": search(), "sweep": sweep(),
             "comparison": paired(67, 73, 8, 2, (0.0, 0.06), 0.109),
             "transfer": {"source": "base", "target": "forged", "attack": "autoattack", "threat": "linf 8/255",
                          **share(74)}}  # fmt: skip
    for kind, values in plain.items():
        write_plain(path, kind, kind, values)
    write_plain(path, "certify__base", "certify", certificate("base", (61, 49, 38, 25, 14, 6, 2, 0)))
    write_plain(path, "certify__forged", "certify", certificate("forged", (60, 50, 38, 26, 13, 6, 2, 0)))
    return path


def write_plain(path: Path, name: str, kind: str, values: dict[str, Any]) -> None:
    """A result as a plain object."""
    write_json(path / "results" / f"{name}.json", {"kind": kind, "format": 1, **values})
