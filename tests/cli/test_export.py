import torch

from lipforge import export, forges, load_exported, load_model, load_recipe
from lipforge.data import load_data
from tests.schemas import result_of

SMALL = ("--data", "cifar10-sample", "--limit", 6)


def recipe_for(run, model_file) -> str:
    ended = run("forge", f"{model_file}:build", *SMALL, "--ratio", "2^-4", "--out", "recipe.json")
    assert ended.code == 0
    return "recipe.json"


def test_a_model_and_its_recipe_become_a_file_with_its_parity_printed(run, model_file, tmp_path):
    recipe = recipe_for(run, model_file)
    ended = run("export", f"{model_file}:build", "--recipe", recipe, "--out", "m.pt2", *SMALL)
    assert ended.code == 0
    assert "6 of 6 classes equal, logits within 0.0e+00" in ended.out
    assert "2 of 2 masks" in ended.out
    assert "wrote m.pt2" in ended.out
    model = load_model(f"{model_file}:build")
    load_recipe(recipe).apply_(model)
    x, _ = load_data("cifar10-sample").batch([0, 1])
    assert len(forges(model)) == 2
    assert torch.equal(load_exported(tmp_path / "m.pt2", model)(x), model(x))


def test_json_is_the_record_of_the_library(run, model_file, tmp_path):
    recipe = recipe_for(run, model_file)
    arguments = ("--recipe", recipe, "--format", "safetensors", "--out", "m.safetensors", *SMALL)
    found = result_of(run("export", f"{model_file}:build", *arguments, "--json").out)
    model = load_model(f"{model_file}:build")
    load_recipe(recipe).apply_(model)
    images = load_data("cifar10-sample", limit=6)
    own = export(model, tmp_path / "own.safetensors", images=images, model_name=f"{model_file}:build")
    assert (found["digest"], found["recipe"]) == (own.digest, own.recipe)


def test_an_unchecked_file_is_said_to_be_unchecked(run, model_file, tmp_path):
    ended = run("export", f"{model_file}:build", "--out", "m.pt2", "--no-check", *SMALL)
    assert ended.code == 0
    assert "was not run beside the model" in ended.err
    assert load_exported(tmp_path / "m.pt2").metadata["checked"] == "false"


def test_wrong_use_is_one_line_and_writes_nothing(run, model_file, tmp_path):
    ended = run("export", f"{model_file}:build", "--format", "onnx", "--out", "m.pt2", *SMALL)
    assert (ended.code, ended.out) == (2, "")
    assert "error: a file in the format onnx must end in .onnx, got 'm.pt2'" in ended.err
    assert run("export", f"{model_file}:build", "--out", "m.onnx", "--opset", 7, *SMALL).code == 2
    assert not list(tmp_path.glob("m.*"))
