"""The documentation as a site: it builds without a warning, and every code block is one."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

pytestmark = pytest.mark.slow


@pytest.fixture(name="site", scope="module")
def _site(tmp_path_factory):
    for package in ("mkdocs", "material"):
        pytest.importorskip(package, reason=f"{package} is not installed")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return folder


def test_the_site_builds_and_has_a_page_for_every_file(site):
    assert {page.stem for page in (ROOT / "docs").glob("*.md")} <= {page.stem for page in site.glob("*.html")}


def test_no_fence_is_left_in_the_text(site):
    assert [page.name for page in site.glob("*.html") if "```" in page.read_text()] == []


def test_pages_load_nothing_from_other_hosts(site):
    loading = re.compile(r"""<(?:script|link|img)[^>]+(?:src|href)=["']?https?://[^>]+>""")
    assert {page.name: found for page in site.glob("*.html") if (found := loading.findall(page.read_text()))} == {}
