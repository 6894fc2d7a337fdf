import ast
import dataclasses
import json
import re
from importlib.metadata import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from lipforge.errors import DataError, InputError
from lipforge.models import leaderboard_of, model_info, read_model_info, why_unofficial, write_model_info
from lipforge.records import read_json, write_json
from lipforge.results import Change, RobustResult
from lipforge.results.corruption import ALEXNET_ERRORS
from tests.reports.results import robust

# Files of RobustBench's repository as they are, in four of the spellings that it has.
NUTS = """{
  "link": "https://arxiv.org/abs/2402.02263",
  "name": "MixedNUTS: Training-Free Accuracy-Robustness Balance via Nonlinearly Mixed Classifiers",
  "authors": "Yatong Bai, Mo Zhou, Vishal M. Patel, Somayeh Sojoudi", "additional_data": true,
  "number_forward_passes": 2, "dataset": "cifar10", "venue": "arXiv, Feb 2024",
  "architecture": "ResNet-152 + WideResNet-70-16", "eps": "8/255", "clean_acc": "95.19", "reported": "69.71",
  "autoattack_acc": "70.08", "external": "69.71",
  "footnote": "It uses an ensemble of networks. The robust base classifier uses 50M synthetic images. 69.71% robust accuracy is due to the original evaluation (Adaptive AutoAttack)",
  "unreliable": false
}"""  # noqa: E501 - as it is published
SALMAN = """{"link": "https://arxiv.org/abs/2007.08489",
  "name": "Do Adversarially Robust ImageNet Models Transfer Better?",
  "authors": "Hadi Salman, Andrew Ilyas, Logan Engstrom, Ashish Kapoor, Aleksander Madry", "additional_data": false,
  "number_forward_passes": 1, "dataset": "imagenet", "venue": "NeurIPS 2020", "architecture": "ResNet-50",
  "eps": "4/255", "clean_acc": "64.02", "reported": "", "autoattack_acc": "34.96"}"""
RLAT = """{"link": "https://arxiv.org/abs/2103.02325",
  "name": "On the effectiveness of adversarial training against common corruptions",
  "authors": "Klim Kireev, Maksym Andriushchenko, Nicolas Flammarion", "additional_data": false,
  "number_forward_passes": 1, "dataset": "cifar10", "venue": "arXiv, Mar 2021", "architecture": "ResNet-18",
  "eps": null, "clean_acc": "93.10", "reported": "84.1", "corruptions_acc": "84.10",
  "footnote": "Trained with RLAT."}"""
ALEXNET = """{"link": "", "name": "ImageNet Classification with Deep Convolutional Neural Networks",
  "authors": "Alex Krizhevsky, Ilya Sutskever, Geoffrey E. Hinton", "additional_data": false,
  "number_forward_passes": 1, "dataset": "imagenet", "venue": "NeurIPS 2012", "architecture": null,
  "eps": 0.03137254901960784, "clean_acc": 0.5538, "reported": null, "corruptions_acc_2d": "21.12",
  "corruptions_acc_3d": "28.41", "corruptions_mce_2d": "100.00", "corruptions_mce_3d": "100.00", "footnote": null}"""


def whole(**changes: Any) -> RobustResult:
    """AutoAttack on all test images of CIFAR-10."""
    return dataclasses.replace(robust("base", (52, 16, 1, 0), 64), count=10_000, **changes)


@pytest.mark.parametrize(
    ("text", "clean", "accuracy"),
    [(NUTS, 0.9519, 0.6971), (SALMAN, 0.6402, 0.3496), (RLAT, 0.9310, 0.8410), (ALEXNET, 0.5538, 0.2112)],
    ids=["external", "autoattack", "corruptions", "fraction"],
)
def test_a_published_file_is_read(tmp_path, text, clean, accuracy):
    (path := tmp_path / "model.json").write_text(text)
    found = read_model_info(path)
    assert (found.model, found.ranked) == ("model", True)
    assert found.clean_accuracy == pytest.approx(clean)
    assert found.robust_accuracy == pytest.approx(accuracy)
    assert found.name == json.loads(text)["name"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is no readable JSON"),
        ("[]", "has no 'clean_acc'"),
        ('{"clean_acc": "high"}', "clean_acc must be a percentage such as '56.20', got 'high'"),
        ('{"clean_acc": "90", "autoattack_acc": "560"}', "autoattack_acc must lie between 0 and 100"),
    ],
)
def test_a_file_that_is_no_model_info_is_refused(tmp_path, text, message):
    (path := tmp_path / "model.json").write_text(text)
    with pytest.raises(DataError, match=message):
        read_model_info(path)


def test_standard_autoattack_on_all_images_is_official():
    info = model_info([whole()])
    assert (info["clean_acc"], info["autoattack_acc"], info["reported"]) == ("68.00", "33.50", "33.50")
    assert (info["dataset"], info["eps"], info["number_forward_passes"]) == ("cifar10", "8/255", 1)
    assert info["unreliable"] is False
    assert "autoattack, linf 8/255" in info["footnote"]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"attack": "fast"}, "the attack was fast, not AutoAttack standard"),
        ({"attack": "autoattack:version=rand"}, "not AutoAttack standard"),
        ({"attack": "autoattack:precision=bfloat16"}, "not AutoAttack standard"),
        (
            {"eps": 4 / 255, "threat": "linf 4/255"},
            "the threat was linf 4/255, but the leaderboards have cifar10 Linf 8/",
        ),
        ({"count": 200}, "200 images were attacked, not all 10,000"),
        ({"dtype": "bfloat16"}, "the model computed in bfloat16"),
        ({"unreliable": True}, "the result is unreliable"),
    ],
)
def test_anything_else_has_no_autoattack_acc(changes, reason):
    result = dataclasses.replace(whole(), **changes)
    info = model_info([result])
    assert "autoattack_acc" not in info
    assert info["reported"] == "33.50"
    assert why_unofficial(result).startswith(reason) or reason in why_unofficial(result)


def test_of_several_attacks_the_lowest_is_reported_and_autoattack_keeps_its_place():
    other = whole(attack="fast", robust_accuracy=0.33)
    info = model_info([whole(), other], authors="Ours", additional_data=True)
    assert (info["autoattack_acc"], info["reported"]) == ("33.50", "33.00")
    assert info["footnote"].startswith("measured by lipforge, base: fast")
    assert (info["authors"], info["additional_data"]) == ("Ours", True)


def test_passes_of_test_time_augmentation_are_not_guessed():
    changed = whole(change=Change("mirror", tta="mirror"))
    assert model_info([changed])["number_forward_passes"] is None
    assert model_info([changed], number_forward_passes=2)["number_forward_passes"] == 2


def test_what_is_written_is_read_beside_what_is_installed(tmp_path):
    path = write_model_info([whole()], tmp_path)
    write_model_info([dataclasses.replace(robust("forged 2^-7", (1, 0, 0, 0), 64), attack="fast")], tmp_path)
    assert path == tmp_path / "cifar10" / "Linf" / "cifar10-resnet.json"
    ours = [entry for entry in leaderboard_of("cifar10", "Linf", [tmp_path]) if entry.source == str(tmp_path)]
    assert [(one.model, one.robust_accuracy, one.ranked) for one in ours] == [
        ("cifar10-resnet", 0.335, True),
        ("cifar10-resnet-forged-2--7", 0.675, False),
    ]


def test_what_people_filled_in_stays(tmp_path):
    path = write_model_info([whole()], tmp_path)
    write_json(path, read_json(path) | {"authors": "Ada", "clean_acc": "1.00"})
    write_model_info([whole()], tmp_path)
    assert read_json(path) == model_info([whole()], authors="Ada")


@pytest.mark.zoo
def test_the_installed_table_is_read_whole():
    """Every line, by the numbers at its start."""
    text = str(metadata("robustbench").json["description"])
    for board, title in (
        ("cifar10/Linf", "#### Linf, eps=8/255\n"),
        ("cifar10/corruptions", "#### Common Corruptions\n"),
    ):
        section = text.partition(title)[2].partition("####")[0]
        ranks = [int(number) for number in re.findall(r"^\| *<sub>\*\*(\d+)\*\*</sub>", section, re.MULTILINE)]
        found = leaderboard_of(*board.split("/"))
        assert len(found) == len(ranks) == max(ranks)
    (fast,) = [entry for entry in leaderboard_of("cifar10", "Linf") if entry.model == "Wong2020Fast"]
    assert fast.clean_accuracy == pytest.approx(0.8334)
    assert fast.robust_accuracy == pytest.approx(0.4321)
    assert fast.name == "Fast is better than free: Revisiting adversarial training"


@pytest.mark.zoo
@pytest.mark.parametrize("board", ["cifar10/Linf", "cifar10/L2", "cifar100/Linf", "imagenet/Linf"])
def test_the_installed_table_is_shown_without_html(board):
    for entry in leaderboard_of(*board.split("/")):
        assert "<" not in f"{entry.name}{entry.architecture}{entry.venue}", entry


def test_a_model_info_is_shown_without_html(tmp_path):
    info = {
        "name": "Fast is <i>better</i><br>than free",
        "clean_acc": "83.34",
        "architecture": "ResNet-50 <br/> (3x ensemble)",
        "footnote": "by <a href='https://x.org'>us</a>, at p < 0.01 and 2 > 1<BR />of <mine>",
    }
    write_json(tmp_path / "a.json", info)
    found = read_model_info(tmp_path / "a.json")
    assert (found.name, found.architecture) == ("Fast is better than free", "ResNet-50 (3x ensemble)")
    assert found.footnote == "by us, at p < 0.01 and 2 > 1 of <mine>"


@pytest.mark.zoo
def test_our_keys_are_those_of_robustbench():
    """Of the dataclass in its source, which takes ten seconds to import."""
    spec = find_spec("robustbench")
    assert spec is not None
    assert spec.origin is not None
    tree = ast.parse((Path(spec.origin).parent / "utils.py").read_text())
    (made,) = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "ModelInfo"]
    known = {ast.unparse(line.target) for line in made.body if isinstance(line, ast.AnnAssign)}
    assert set(model_info([whole()])) <= known | {"external", "unreliable"}  # in its files
    assert "autoattack_acc" in known


@pytest.mark.zoo
def test_alexnets_published_errors_are_those_of_the_leaderboard():
    (alexnet,) = [entry for entry in leaderboard_of("imagenet", "corruptions") if entry.model == "AlexNet"]
    mean = sum(ALEXNET_ERRORS.values()) / len(ALEXNET_ERRORS)
    assert 1 - mean == pytest.approx(alexnet.robust_accuracy, abs=0.001)  # RobustBench has 5,000 of the 50,000 images


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"data": "npz:mine.npz"},
            "data must be the test set of cifar10 or cifar100 for RobustBench, got npz:mine.npz",
        ),
        ({"data": "cifar10:train"}, "got cifar10:train"),
        ({"norm": "l1"}, "RobustBench has leaderboards in linf, l2, got l1"),
        ({"norm": "l2", "data": "cifar100"}, "RobustBench has no leaderboard for cifar100, L2"),
    ],
)
def test_what_robustbench_has_no_leaderboard_for_is_refused(changes, message):
    with pytest.raises(InputError, match=message):
        model_info([dataclasses.replace(whole(), **changes)])


def test_wrong_arguments_are_refused(tmp_path):
    with pytest.raises(InputError, match="at least one evaluation"):
        model_info([])
    with pytest.raises(InputError, match="of one model on the same images, got another label"):
        model_info([whole(), whole(label="forged")])
    with pytest.raises(InputError, match=r"leaderboard must be one of cifar10/Linf, .*, got mnist/Linf"):
        leaderboard_of("mnist", "Linf")
    with pytest.raises(DataError, match=r"no cifar10/Linf/\*.json in"):
        leaderboard_of("cifar10", "Linf", [tmp_path])
