"""What a store must have: the shipped ones are complete, what is written is listed, what is not right is named."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from loopscope.errors import DamagedError
from loopscope.store import inventory
from loopscope.store.inventory import INVENTORY
from loopscope.store.manifest import MANIFEST, manifest_text
from loopscope.store.store import Artefact, Store
from loopscope.store.zoo import open_zoo
from loopscope.studies.reading import check_zoo
from loopscope.studies.records import RECORD, open_results
from loopscope.studies.report.page import KICKER
from tests.commands import loopscope
from tests.stores import put_backbone

Refused = Callable[..., str]


def put(store: Store, number: int, kind: str = "thing") -> Artefact:
    with store.write(kind, {"number": number}) as draft:
        draft.json("value.json", number)
    return draft.artefact


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Three things, all listed."""
    made = Store(tmp_path / "store")
    inventory.write(made.root, [f"thing/{put(made, number).key}" for number in range(3)])
    return made


# ---- what comes with a checkout --------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", [*open_results(), open_zoo()], ids=lambda store: store.root.name)
def test_what_comes_with_a_checkout_is_listed_and_there(place: Store) -> None:
    there = {f"{each.kind}/{each.key}" for each in place.list()}
    assert (inventory.listed(place.root) or {}).keys() == there
    assert inventory.check(place.root, needed=True) == len(there) > 50


def test_a_checkout_without_its_inventory_is_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Refused
) -> None:
    monkeypatch.delenv("LOOPSCOPE_ZOO", raising=False)
    check_zoo()
    (tmp_path / "zoo").mkdir()
    check_zoo(tmp_path / "zoo")  # another zoo promises nothing
    monkeypatch.setattr("loopscope.store.zoo.zoo_folder", lambda _: tmp_path / "zoo")
    told = refused(DamagedError, check_zoo)
    assert told == f"{tmp_path / 'zoo' / INVENTORY}: expected the inventory of what comes with a checkout, found none"


# ---- comparing -------------------------------------------------------------------------------------------------------


def test_a_store_without_one_promises_nothing(tmp_path: Path) -> None:
    put(Store(tmp_path), 1)
    assert inventory.check(tmp_path) is None
    assert inventory.check(tmp_path / "nowhere") is None
    assert not (tmp_path / INVENTORY).exists()


def test_what_is_missing_foreign_or_changed_is_named(store: Store, tmp_path: Path, refused: Refused) -> None:
    assert inventory.check(store.root) == 3
    gone, changed, _ = store.every("thing")
    shutil.rmtree(gone.folder)
    body = json.loads((changed.folder / MANIFEST).read_bytes())
    del body["digest"]
    (changed.folder / MANIFEST).write_bytes(manifest_text(body | {"device": "another"}))
    foreign = put(Store(tmp_path / "other"), 9)
    shutil.copytree(foreign.folder, store.root / "thing" / foreign.key)
    assert len(store.every("thing")) == 3  # each whole in itself
    wrong = {gone.key: "is missing", changed.key: "has another manifest", foreign.key: "is not listed"}
    said = "; ".join(f"thing/{key} {what}" for key, what in sorted(wrong.items()))
    assert refused(DamagedError, inventory.check, store.root) == f"{store.root} is not as its {INVENTORY} says: {said}"


def test_many_differences_are_counted(store: Store, refused: Refused) -> None:
    shutil.rmtree(store.root / "thing")
    entries = {f"thing/{number:064x}": "0" * 64 for number in range(9)}
    (store.root / INVENTORY).write_bytes(manifest_text({"schema": 1, "artefacts": entries}))
    told = refused(DamagedError, inventory.check, store.root)
    assert told.count("is missing") == inventory.NAMED
    assert told.endswith("; and 4 more")


@pytest.mark.parametrize(
    "data",
    [
        b"", b"[]", b"{", b'{"schema": 1}', b'{"digest": "x", "schema": 1, "artefacts": {}}',
        manifest_text({"schema": 2, "artefacts": {}}), manifest_text({"schema": 1, "artefacts": {"../x": "0" * 64}}),
        manifest_text({"schema": 1, "artefacts": {f"thing/{'0' * 64}": "short"}}),
        manifest_text({"schema": "1", "artefacts": {}}), manifest_text({"schema": 1, "artefacts": []}),
    ],
)  # fmt: skip
def test_a_damaged_inventory_is_damage(store: Store, data: bytes, refused: Refused) -> None:
    (store.root / INVENTORY).write_bytes(data)
    assert refused(DamagedError, inventory.check, store.root).startswith(f"{store.root / INVENTORY}: expected ")
    with pytest.raises(DamagedError):
        put(store, 7)
    assert len(store.list()) == 3  # refused before it was there


def test_every_byte_of_it_counts(store: Store) -> None:
    whole = (store.root / INVENTORY).read_bytes()
    for place in range(0, len(whole), 7):
        (store.root / INVENTORY).write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(DamagedError):
            inventory.check(store.root)


# ---- in step ---------------------------------------------------------------------------------------------------------


def test_what_is_written_adopted_and_removed_is_listed_in_the_same_operation(store: Store, tmp_path: Path) -> None:
    put(store, 3, "other")
    assert inventory.check(store.root) == 4
    store.adopt(put(Store(tmp_path / "elsewhere"), 4))
    assert inventory.check(store.root) == 5
    assert store.remove("thing", put(store, 4).key)
    assert inventory.check(store.root) == 4
    assert sorted(path.name for path in store.root.iterdir()) == [".lock", INVENTORY, "other", "thing"]


def test_a_listing_that_a_dead_writer_did_not_make_is_made_by_the_same_write(store: Store) -> None:
    before = (store.root / INVENTORY).read_bytes()
    put(store, 5)
    (store.root / INVENTORY).write_bytes(before)
    with pytest.raises(DamagedError, match="is not listed"):
        inventory.check(store.root)
    put(store, 5)
    assert inventory.check(store.root) == 4


def test_writing_again_does_not_list_another_content(store: Store) -> None:
    """Somebody's artefact in the place of ours, whole in itself: it is kept, and still is not ours."""
    mine = store.every("thing")[0]
    body = json.loads((mine.folder / MANIFEST).read_bytes())
    del body["digest"]
    (mine.folder / MANIFEST).write_bytes(manifest_text(body | {"device": "another"}))
    put(store, mine.manifest.config["number"])
    with pytest.raises(DamagedError, match="has another manifest"):
        inventory.check(store.root)


def test_a_damaged_artefact_that_is_written_again_is_listed_anew(store: Store) -> None:
    mine = store.every("thing")[1]
    (mine.folder / "value.json").write_bytes(b"?")
    put(store, mine.manifest.config["number"])
    assert inventory.check(store.root) == 3


def test_many_writers_and_a_reader(store: Store) -> None:
    """Whoever reads meanwhile sees no difference that is none."""

    def write(number: int) -> None:
        put(store, 10 + number, f"kind-{number % 2}")
        inventory.check(store.root)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(12)))
    assert inventory.check(store.root) == 15


def test_zoo_add_lists_what_it_adds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put_backbone(Store(tmp_path / "store"), 3)
    put_backbone(Store(tmp_path / "zoo"), 4)
    zoo = Store(tmp_path / "zoo")
    inventory.write(zoo.root, [f"{each.kind}/{each.key}" for each in zoo.list()])
    name = next(iter(Store(tmp_path / "store").list())).key
    code, _, err = loopscope(capsys, "zoo", "add", name, "--store", f"{tmp_path}/store", "--zoo", f"{tmp_path}/zoo")
    assert (code, err) == (0, "")
    assert inventory.check(zoo.root) == 2


# ---- commands --------------------------------------------------------------------------------------------------------


def test_the_command_compares_and_writes(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    place = ("--store", str(store.root))
    code, out, err = loopscope(capsys, "store", "inventory", *place, "--json")
    assert (code, json.loads(out), err) == (0, {"inventory": str(store.root / INVENTORY), "artefacts": 3}, "")
    gone = store.every("thing")[0]
    shutil.rmtree(gone.folder)
    for command in ("inventory", "verify"):
        code, _, err = loopscope(capsys, "store", command, *place)
        assert (code, err.count("\n")) == (3, 1)
        assert f"thing/{gone.key} is missing" in err
    code, out, err = loopscope(capsys, "store", "inventory", *place, "--write")
    assert (code, out, err) == (0, f"{store.root / INVENTORY}: 2 artefacts, all there and no others\n", "")


def test_the_command_lists_nothing_that_is_damaged(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    (victim := store.every("thing")[0].folder / "value.json").write_bytes(b"?\n")
    before = (store.root / INVENTORY).read_bytes()
    code, out, err = loopscope(capsys, "store", "inventory", "--store", str(store.root), "--write")
    assert (code, out, err.count("\n")) == (3, "", 1)
    assert str(victim) in err
    assert (store.root / INVENTORY).read_bytes() == before


def test_the_command_on_a_store_without_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = loopscope(capsys, "store", "inventory", "--store", str(tmp_path))
    assert (code, out) == (2, "")
    assert err == f"loopscope: {tmp_path} has no {INVENTORY}, so nothing need be there; --write lists all that is\n"


# ---- verdicts --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def walked(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """The native trajectories that were published, with their inventory."""
    store = Store(tmp_path_factory.mktemp("walked"))
    for each in open_results()[0].every(RECORD):
        if each.manifest.config["experiment"] == "trajectories":
            store.adopt(each)
    inventory.write(store.root, [f"{each.kind}/{each.key}" for each in store.list()])
    return store


@pytest.mark.parametrize("how", ["cut", "flipped", "deleted", "foreign", "no inventory"])
def test_no_verdict_without_all_records_or_with_others(
    walked: Store, how: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without the one record that decides against it, `native.endpoint` would hold."""
    results = tmp_path / "results"
    shutil.copytree(walked.root, results)
    victim = next(each for each in Store(results).every(RECORD) if each.manifest.config["subject"] == "d8l6-14")
    file, named = victim.folder / "rings.safetensors.xz", victim.key
    data = file.read_bytes()
    if how in ("cut", "no inventory"):
        file.write_bytes(data[:-1])
        named = str(file)
    elif how == "flipped":
        file.write_bytes(data[:99] + bytes([data[99] ^ 4]) + data[100:])
        named = str(file)
    elif how == "deleted":
        shutil.rmtree(victim.folder)
    else:
        foreign = next(each for each in open_results()[0].every(RECORD) if not (results / RECORD / each.key).exists())
        shutil.copytree(foreign.folder, results / RECORD / foreign.key)
        named = foreign.key
    if how == "no inventory":
        (results / INVENTORY).unlink()
    out = tmp_path / "report"
    out.mkdir()
    (out / "index.html").write_text(f"an earlier page {KICKER}")
    for command in (
        ("claims",), ("claims", "--json"), ("reproduce", "trajectories", "--out", str(out), "--store", f"{tmp_path}/S")
    ):  # fmt: skip
        code, said, err = loopscope(capsys, *command, "--results", str(results))
        assert (code, said, err.count("\n")) == (3, "", 1)
        assert named in err
    assert [path.name for path in out.iterdir()] == ["index.html"]
    assert (out / "index.html").read_text() == f"an earlier page {KICKER}"
    assert not (tmp_path / "S").exists()


def test_an_export_and_a_store_that_are_not_whole_are_refused_before_anything_is_measured(
    walked: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(walked.root, tmp_path / "E")
    shutil.rmtree(next((tmp_path / "E" / RECORD).glob("[0-9a-f]*")))
    kept = ("--results", str(walked.root), "--out", f"{tmp_path}/O")
    for option in (("--export", f"{tmp_path}/E", "--store", f"{tmp_path}/S"), ("--store", f"{tmp_path}/E")):
        code, out, err = loopscope(capsys, "reproduce", "trajectories", *option, *kept)
        assert (code, out, err.count("\n")) == (3, "", 1)
        assert "is missing" in err
    assert [path.name for path in tmp_path.iterdir()] == ["E"]
