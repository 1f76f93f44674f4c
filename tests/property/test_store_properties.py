"""Stores: what must hold for any artefact that goes from one to another."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from loopscope.store.manifest import artefact_key
from loopscope.store.store import Artefact, Store

texts = st.text(st.characters(codec="utf-8"), max_size=6)
plain = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts
values = st.recursive(plain, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3))
configs = st.dictionaries(texts, values, max_size=3)
keys = st.text("0123456789abcdef", min_size=64, max_size=64)
inputs = st.dictionaries(texts, keys, max_size=2)
files = st.dictionaries(st.text("abé0-_", min_size=1, max_size=5), st.binary(max_size=40), max_size=3)


def content(artefact: Artefact) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in artefact.folder.iterdir()}


@settings(max_examples=30)
@given(configs, inputs, files)
def test_adopting_keeps_key_manifest_and_bytes(
    config: dict[str, Any], sources: dict[str, str], data: dict[str, bytes]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        first, second, third = (Store(Path(folder) / name) for name in ("first", "second", "third"))
        with first.write("map", config, sources) as draft:
            for name, content_of_file in data.items():
                draft.bytes(name, content_of_file)
        original = draft.artefact
        before = content(original)
        for copy in (second.adopt(original), third.adopt(second.adopt(original)), first.adopt(original)):
            assert copy.key == original.key == artefact_key("map", config, sources)
            assert copy.manifest == original.manifest
            assert content(copy) == before
        assert second.find("map", config, sources) is not None
        assert content(original) == before
        # What is removed here stays there.
        assert second.remove("map", original.key)
        assert second.every("map") == ()
        assert third.every("map") == (third.open("map", original.key),)
