"""500 damaged files, the first of those that `python tools/fuzz.py` reads by the thousand; LIPFORGE_FUZZ=10000 reads as
many here."""

import json
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz.engine import Seen, try_input, try_kind
from tests.fuzz.formats import KINDS

INPUTS = int(os.environ.get("LIPFORGE_FUZZ", "400"))
NAMES = [name for name, kind in KINDS.items() if INPUTS > 400 or not kind.slow]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@pytest.mark.parametrize("name", NAMES)
def test_a_damaged_file_is_read_or_refused_by_name(name, tmp_path):
    seen = try_kind(name, -(-INPUTS // len(NAMES)), tmp_path, seed=0)
    assert seen.complaints == []
    assert seen.read + seen.refused == seen.inputs


@pytest.mark.parametrize("name", NAMES)
def test_any_bytes_are_refused_by_name(name, tmp_path):
    kind, seen = KINDS[name], Seen()
    whole: Path = tmp_path / "whole" / kind.file
    whole.parent.mkdir(parents=True)
    kind.write(whole)
    values = JSON.map(lambda value: json.dumps(value).encode()) if whole.suffix == ".json" else st.nothing()

    @settings(max_examples=4, suppress_health_check=list(HealthCheck))
    @given(content=st.binary(max_size=80) | values)
    def read(content):
        try_input(kind, content, tmp_path, seen, name)

    read()
    assert seen.complaints == []
