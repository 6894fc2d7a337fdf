"""Groups of options, and what the commands share."""

import inspect
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import pytest
import torch
import typer
from typer.testing import CliRunner

import lipforge
from lipforge.batching import BATCH_SIZE
from lipforge.certification import BATCH_SIZE as CERTIFY_BATCH
from lipforge.cli.certify import certify
from lipforge.cli.evaluate import evaluate
from lipforge.cli.forge import forge
from lipforge.cli.options import DataOptions, ImageOptions, RecipeOptions, ThreatOptions, command
from lipforge.cli.search import search
from lipforge.cli.train import TrainOptions
from lipforge.cli.transfer import transfer
from lipforge.errors import InputError
from lipforge.evaluation import BATCH_SIZE as EVALUATE_BATCH
from lipforge.evaluation import PROBE, REFINE
from lipforge.search import RATIOS
from lipforge.training import TrainConfig
from lipforge.types import parse_number


@dataclass(frozen=True)
class Inner:
    panel: ClassVar[str] = "Inner"
    depth: Annotated[int, typer.Option(help="How deep.")] = 1


@dataclass(frozen=True)
class Outer:
    panel: ClassVar[str] = "Outer"
    name: Annotated[str, typer.Argument()]
    inner: Inner = Inner()
    width: Annotated[int, typer.Option(help="How wide.")] = 2


def ask(*arguments: str, **changes: Any) -> tuple[list[Any], str]:
    """What a command gets that takes the groups, and what it prints."""
    app = typer.Typer()
    got: list[Any] = []

    @app.command()
    @command(**changes)
    def made(outer: Outer, last: Annotated[int, typer.Option()] = 5) -> None:
        """Do it."""
        got.extend([outer, last])

    return got, CliRunner().invoke(app, list(arguments)).output


def test_a_command_gets_its_groups_and_groups_in_groups():
    assert ask("me", "--depth", "7", "--width", "8", "--last", "9")[0] == [Outer("me", Inner(7), 8), 9]
    assert ask("me")[0] == [Outer("me", Inner(1), 2), 5]


def test_a_command_may_change_a_default_a_name_or_require_an_option():
    assert ask("me", depth=4)[0] == [Outer("me", Inner(4), 2), 5]
    renamed = {"width": (6, typer.Option("--breadth", help="Another word."))}
    assert ask("me", **renamed)[0] == [Outer("me", Inner(1), 6), 5]
    assert ask("me", "--breadth", "3", **renamed)[0] == [Outer("me", Inner(1), 3), 5]
    got, output = ask("me", width=...)
    assert (got, "Missing option '--width'" in output) == ([], True)


def test_the_help_shows_a_panel_for_each_group():
    output = ask("--help")[1]
    places = [output.index(word) for word in ("Do it.", "Options", "--last", "Inner", "--depth", "Outer", "--width")]
    assert places == sorted(places)


@pytest.mark.parametrize(
    ("made", "option", "default"),
    [
        (evaluate, "batch_size", str(EVALUATE_BATCH)),
        (evaluate, "probe", PROBE),
        (certify, "batch_size", CERTIFY_BATCH),
        (forge, "batch_size", BATCH_SIZE),
        (transfer, "refine", REFINE),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_a_default_is_that_of_the_library(made, option, default):
    assert inspect.signature(made).parameters[option].default == default


def test_the_ratios_and_the_settings_of_training_are_those_of_the_library():
    texts = inspect.signature(search).parameters["ratios"].default.split(",")
    assert tuple(parse_number(text, name="ratio") for text in texts) == RATIOS
    assert {**vars(TrainOptions()), "threat": ThreatOptions().threat} == vars(TrainConfig())


@pytest.mark.parametrize(("spec", "passed"), [("hub:somewhere", False), ("npz:a.npz", False), ("folder:images", True)])
def test_resizing_applies_to_image_folders_and_to_nothing_else(monkeypatch, spec, passed):
    seen = []
    monkeypatch.setattr(lipforge, "load_data", lambda spec, **given: seen.append(given["folder"]))
    DataOptions(spec, folder=ImageOptions(resize=48, crop=0)).open()
    assert seen == [lipforge.FolderOptions(resize=48, crop=None) if passed else None]


def test_wrong_words_about_folders_are_an_error_whatever_the_data():
    with pytest.raises(InputError, match="interpolation must be one of"):
        DataOptions("cifar10-sample", folder=ImageOptions(interpolation="box")).open()


def test_views_are_labelled_by_what_they_are(tmp_path):
    def fresh():
        return lipforge.load_model("resnet8", pretrained=False)

    model, alone = fresh(), fresh()
    lipforge.forge_(model, lipforge.load_data("cifar10-sample:train", limit=4))
    lipforge.save_recipe(tmp_path / "r.json", model)
    assert RecipeOptions().views(alone) == {"base": alone}
    recipe = RecipeOptions(str(tmp_path / "r.json"), "2^-3")
    views = recipe.views(fresh())
    assert list(views) == ["base", "forged"]
    assert {forge.ratio for forge in lipforge.forges(views["forged"]).values()} == {2**-3}
    assert list(recipe.views(fresh(), ["straight_through", "plain"])) == ["straight_through", "base"]


@pytest.mark.parametrize(
    "given",
    [
        ("search",),
        ("analyse",),
        ("evaluate", "--ratio", "2^-7"),
        ("evaluate", "--view", "straight_through"),
        ("train", "--arch"),
    ],
    ids=" ".join,
)
def test_a_recipe_without_forged_functions_leads_to_lipforge_forge_where_they_are_needed(
    run, model_file, mirrored, given
):
    ended = run(*given, f"{model_file}:build", "--recipe", mirrored, "--data", "cifar10-sample")
    assert ended.code == 2
    message = "error: mirror.json has no forged functions; `lipforge forge` writes a recipe that has them\n"
    assert ended.err.endswith(message)


def test_an_affine_part_alone_has_no_ratio_to_search(run, model_file):
    model = lipforge.load_model(f"{model_file}:build")
    lipforge.insert_(model, lipforge.find_sites(model))
    for one in lipforge.forges(model).values():
        one.set_affine(torch.ones(one.channels), torch.zeros(one.channels))
    lipforge.save_recipe("affine.json", model)
    ended = run("search", f"{model_file}:build", "--recipe", "affine.json", "--data", "cifar10-sample")
    assert "affine.json has no forged functions; `lipforge forge`" in ended.err
