"""Who may import whom (docs/architecture.md)."""

import ast
from pathlib import Path

import pytest

import lipforge

ROOT = Path(lipforge.__file__).parent
GROUND = {"types", "errors", "records", "batching", "pairs", "progress", "ranks", "rng"}
ALLOWED = {
    **dict.fromkeys(GROUND, GROUND),
    **{part: GROUND | {part} for part in ("forge", "attacks", "models", "data", "runs")},
    "certify": GROUND | {"certify", "runs"},
    "training": GROUND | {"training", "attacks", "runs"},
    "evaluation": GROUND | {"evaluation", "attacks", "runs"},
    "searching": GROUND | {"searching", "forge", "attacks", "evaluation", "runs"},
    "analysis": GROUND | {"analysis", "forge"},
    "reports": GROUND | {"reports"},
    "audit": GROUND | {"audit", "forge", "attacks", "evaluation", "runs"},
    "paper": GROUND | {"paper"},
}
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
