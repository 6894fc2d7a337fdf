"""The Dockerfile names what is there. It is not built here: that needs a Docker engine."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LINES = (ROOT / "Dockerfile").read_text().replace("\\\n", " ").splitlines()
COPIED = [source for line in LINES if re.match(r"COPY (?!--from)", line) for source in line.split()[1:-1]]


@pytest.mark.parametrize("source", COPIED)
def test_what_is_copied_exists_and_is_not_ignored(source):
    assert (ROOT / source).exists()
    assert f"!{source}" in (ROOT / ".dockerignore").read_text().splitlines()


def test_the_wheel_is_built_from_all_that_it_needs():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    needed = {"pyproject.toml", project["project"]["readme"], *project["project"]["license-files"], "src"}
    assert needed <= set(COPIED)
    assert project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"] == ["src/lipforge"]


def test_the_image_runs_the_command_as_an_ordinary_user():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (entry,) = [line for line in LINES if line.startswith("ENTRYPOINT")]
    assert entry == f'ENTRYPOINT ["{next(iter(project["scripts"]))}"]'
    users = [line.split()[1] for line in LINES if line.startswith("USER")]
    assert users == ["lipforge"]
    assert LINES.index("USER lipforge") < LINES.index(entry)


def test_images_are_named_without_a_registry():
    assert [line.split()[1] for line in LINES if line.startswith("FROM")] == ["python:3.11-slim"] * 2


def test_only_interpreters_that_ran_the_tests_are_claimed():
    """CI runs the version of the image; see CONTRIBUTING.md for the others."""
    classifiers = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["classifiers"]
    assert [name for name in classifiers if "Python :: 3." in name] == ["Programming Language :: Python :: 3.11"]
