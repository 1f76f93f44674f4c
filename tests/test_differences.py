"""Where the same key has other bits: found, told with both devices, and no damage."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

from loopscope.cli.reproducing import _other_bits, _page
from loopscope.store.differences import differing, in_short
from loopscope.store.manifest import MANIFEST, manifest_text
from loopscope.store.store import Artefact, Store
from loopscope.studies.evidence import Evidence
from loopscope.studies.records import RECORD, open_results
from tests.commands import loopscope


def put(store: Store, value: float, device: str, note: str = "", packed: bool = False) -> Artefact:
    """An artefact of one key whose content is `value`."""
    end = ".xz" if packed else ""
    with store.write("record", {"asked": "the same"}) as draft:
        draft.tensors(f"answers.safetensors{end}", {"A": torch.full((100,), value)})
        draft.json(f"about.json{end}", {"note": note})
    # This machine has one device, so the manifest is told another.
    made = replace(draft.artefact.manifest, device=device)
    (draft.artefact.folder / MANIFEST).write_bytes(manifest_text(asdict(made)))
    return store.open("record", made.key)


@pytest.fixture
def stores(tmp_path: Path) -> tuple[Store, Store]:
    return Store(tmp_path / "here"), Store(tmp_path / "there")


def test_other_bits_under_one_key_are_found_and_told(
    stores: tuple[Store, Store], capsys: pytest.CaptureFixture[str]
) -> None:
    here, there = stores
    mine = put(here, 1.0, "cpu x86_64, 2 threads")
    put(there, 2.0, "cuda Some GPU", packed=True)
    (found,) = differing(here, [there, here])
    assert (found.kind, found.key, found.files) == ("record", mine.key, ("answers.safetensors",))
    told = (
        f"other bits than in {there.root}: answers.safetensors; made on cpu x86_64, 2 threads here, "
        "on cuda Some GPU there"
    )
    assert str(found) == told
    assert in_short([found]) == [
        "In 1 case a record made here on cpu x86_64, 2 threads has other bits than that of the same key in there, "
        "made on cuda Some GPU."
    ]
    arguments = ("--store", str(here.root), "--against", str(there.root), "--against", str(here.root), "--json")
    code, out, err = loopscope(capsys, "store", "verify", *arguments)
    assert (code, err) == (0, "")
    (row,) = json.loads(out)["artefacts"]
    assert (row["state"], row["reason"]) == ("ok", told)


@pytest.mark.parametrize("packed", [False, True])
def test_the_same_content_is_no_difference_however_it_is_stored(stores: tuple[Store, Store], packed: bool) -> None:
    here, there = stores
    put(here, 1.0, "cpu one")
    put(there, 1.0, "cpu two", packed=packed)
    assert differing(here, [there]) == differing(there, [here]) == []
    third = Store(here.root.parent / "third")
    third.adopt(put(here, 1.0, "cpu one"), compress=["answers.safetensors"])  # other bytes than those of a draft
    assert differing(third, [here, there]) == []


def test_notes_that_differ_are_told_by_verify_and_not_in_short(stores: tuple[Store, Store]) -> None:
    here, there = stores
    put(here, 1.0, "cpu", note="took 3 s")
    put(there, 1.0, "cpu", note="took 4 s")
    (found,) = differing(here, [there])
    assert found.files == ("about.json",)
    assert in_short([found]) == []
    assert differing(here, [there], ["map"]) == []


def test_what_cannot_be_compared_says_why(stores: tuple[Store, Store]) -> None:
    here, there = stores
    put(here, 1.0, "cpu")
    other = put(there, 1.0, "cpu")
    (other.folder / "answers.safetensors").write_bytes(b"")
    (found,) = differing(here, [there])
    assert str(found).startswith(
        f"cannot be compared with {there.root}: {other.folder / 'answers.safetensors'}: expected"
    )
    assert in_short([found]) == ["In 1 case a record cannot be compared with that of the same key in there."]
    # The other way round, `verify` tells the damage.
    assert differing(there, [here]) == []


def test_by_default_a_store_is_compared_with_the_checkout(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    released = open_results(None)[0].every(RECORD)[0]
    store = Store(tmp_path / "store")
    config, inputs = released.manifest.config, released.manifest.inputs
    with store.write(RECORD, config, inputs) as draft:
        for name in released.manifest.files:
            draft.bytes(name, released.bytes(name))
    code, out, _ = loopscope(capsys, "store", "verify", "--store", str(store.root), "--json")
    assert (code, json.loads(out)["artefacts"][0]["reason"]) == (0, "")
    store.remove(RECORD, released.key)
    with store.write(RECORD, config, inputs) as draft:
        draft.json("other.json", 1)
    code, out, _ = loopscope(capsys, "store", "verify", "--store", str(store.root), "--json")
    (row,) = json.loads(out)["artefacts"]
    assert (code, row["state"]) == (0, "ok")
    assert row["reason"].startswith(f"other bits than in {released.folder.parent.parent}: ")


def test_the_page_says_where_records_have_other_bits(stores: tuple[Store, Store], tmp_path: Path) -> None:
    here, there = stores
    put(here, 1.0, "cpu <one>")
    put(there, 2.0, "cpu two")
    notes = _other_bits(here.root, there.root)
    page, _ = _page(Evidence(), tmp_path / "page", notes)
    said = "made here on cpu &lt;one&gt; has other bits than that of the same key in there, made on cpu two."
    assert said in " ".join(page.read_text(encoding="utf-8").split())
    assert _other_bits(here.root, here.root) == []
