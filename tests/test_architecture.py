"""Who may import whom (docs/architecture.md)."""

import ast
import importlib
import importlib.metadata
import pkgutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import lipforge

ROOT = Path(lipforge.__file__).parent
SCRIPTS = [path for folder in ("benchmarks", "tools") for path in sorted((ROOT.parents[1] / folder).glob("*.py"))]
GROUND = {
    "types", "errors", "text", "records", "digests", "logs", "statistics", "results", "batching", "outputs", "sources",
    "recording", "progress", "ranks", "tracking", "rng", "memory", "allocator",
}  # fmt: skip
ALLOWED = {
    **dict.fromkeys(GROUND, GROUND),
    **{part: GROUND | {part} for part in ("forge", "attacks", "models", "data", "runs")},
    "evaluation": GROUND | {"evaluation", "attacks", "runs"},
    "training": GROUND | {"training", "attacks", "runs"},
    "corruptions": GROUND | {"corruptions", "data", "evaluation", "runs"},
    "certification": GROUND | {"certification", "forge", "attacks", "evaluation", "runs"},
    "analysis": GROUND | {"analysis", "forge"},
    "deployment": GROUND | {"deployment", "forge"},
    "search": GROUND | {"search", "forge", "attacks", "evaluation", "runs"},
    "auditing": GROUND | {"auditing", "forge", "attacks", "evaluation", "runs"},
    "improvement": GROUND | {"improvement", "auditing", "forge", "attacks", "evaluation", "data", "runs"},
    "reproduction": GROUND
    | {
        "reproduction",
        "forge",
        "attacks",
        "models",
        "data",
        "evaluation",
        "certification",
        "analysis",
        "runs",
        "paper",
    },
    "reports": GROUND | {"reports"},
    "paper": GROUND | {"paper"},
}
LIGHT = ("types", "errors", "text", "records", "logs", "statistics", "results", "progress", "ranks", "tracking",
         "reports", "cli.main")  # fmt: skip
"""What imports no torch, which takes seconds."""
PACKAGES = sorted(path.parent.relative_to(Path(lipforge.__file__).parents[1]) for path in ROOT.rglob("__init__.py"))
FILES = sorted(path for path in ROOT.rglob("*.py"))


def part_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imported_parts(path: Path) -> set[str]:
    modules = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            modules.add(node.module)
        elif isinstance(node, ast.Import):
            modules.update(alias.name for alias in node.names)
    return {module.split(".")[1] for module in modules if module.startswith("lipforge.")}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_file_imports_only_what_its_layer_may(path):
    part = part_of(path)
    if part in ALLOWED:
        assert imported_parts(path) <= ALLOWED[part]
    if part not in ("cli", "__main__"):
        assert "cli" not in imported_parts(path)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_is_unpickled_or_evaluated(path):
    """Data files are data: no pickle.load, no eval or exec, no torch.load without weights_only=True."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            assert name not in ("eval", "exec", "pickle.load", "pickle.loads"), f"{path}:{node.lineno}"
            if name == "torch.load":
                arguments = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
                assert arguments.get("weights_only") == "True", f"{path}:{node.lineno}"


def test_every_part_has_its_place():
    parts = {part_of(path) for path in FILES} - {"__init__", "__main__", "cli"}
    assert parts == set(ALLOWED)


@pytest.mark.parametrize("package", PACKAGES, ids=str)
def test_no_function_hides_a_module(package):
    """`import lipforge.auditing.run` gives a module, whatever the package exports."""
    found = importlib.import_module(".".join(package.parts))
    for module in pkgutil.iter_modules(found.__path__):
        if module.name != "__main__":
            importlib.import_module(f"{found.__name__}.{module.name}")
        assert isinstance(getattr(found, module.name, found), ModuleType), f"{found.__name__}.{module.name}"


@pytest.mark.parametrize("part", LIGHT)
def test_what_should_be_light_imports_no_torch(part):
    code = f"import sys, lipforge.{part}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_file_is_one_idea_on_at_most_400_lines(path):
    assert len(path.read_text().splitlines()) <= 400


def test_every_public_name_is_the_object_that_the_stub_names():
    for name, module in lipforge._MODULES.items():  # type: ignore[attr-defined]  # not in the stub
        assert getattr(lipforge, name) is getattr(importlib.import_module(module), name), name


def test_a_package_can_be_reached_after_import_lipforge_alone():
    code = "import lipforge; lipforge.attacks.PGD; lipforge.ranks.process_group; lipforge.rng"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        lipforge.nothing  # type: ignore[attr-defined]  # noqa: B018


def test_the_version_is_the_installed_one_and_imports_no_torch():
    code = "import sys, lipforge; print(lipforge.__version__); sys.exit('torch' in sys.modules)"
    ended = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert (ended.returncode, ended.stdout.strip()) == (0, importlib.metadata.version("lipforge"))


def test_forging_and_attacking_do_not_wait_for_torch_to_import_its_compiler():
    code = (
        "import sys, lipforge as lf\n"
        "model = lf.load_model('cifar10-resnet')\n"
        "data = lf.load_data('cifar10-sample:test', limit=2)\n"
        "lf.forge_(model, data)\n"
        "lf.evaluate(lf.forged(model), data, lf.fast(), lf.Threat('linf', '8/255'))\n"
        "sys.exit('torch._dynamo' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_a_script_uses_public_names_that_exist(path):
    used = {
        node.attr
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "lf"
    }
    assert [name for name in sorted(used) if not hasattr(lipforge, name)] == []
