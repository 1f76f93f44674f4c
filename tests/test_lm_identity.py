"""What a language model is known by: with another config, tokenizer or template it is another, to whoever asks."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from loopscope.errors import InputError
from loopscope.maps import map_key
from loopscope.models.folders import weights_sha256
from loopscope.models.identity import Identity, identify
from loopscope.models.steering import read_fitted
from loopscope.store.store import Store
from loopscope.studies.language.names import identity, identity_of, scale_of
from loopscope.studies.language.records import load_language
from loopscope.studies.letters.records import measure_letters
from loopscope.studies.records import RECORD, config_of, load, records, save
from loopscope.training.lm import jobs
from loopscope.training.lm.jobs import Settings, finetune, fit
from tests.commands import loopscope
from tests.model_folders import TEMPLATE, ouro_folder, put_tokenizer, stack_folder
from tests.ouro_tiny import weights, write_folder
from tests.stores import everything_under
from tests.tuning_tiny import small, sources, tuning_folder
from tests.worded import worded_folder, worded_map

Change = Callable[[Path], None]


def edited(name: str, **changes: Any) -> Change:
    """What sets keys of a folder's JSON file; None takes one away."""

    def change(folder: Path) -> None:
        values = {**json.loads((folder / name).read_text(encoding="utf-8")), **changes}
        kept = {key: value for key, value in values.items() if value is not None}
        (folder / name).write_text(json.dumps(kept), encoding="utf-8")

    return change


def retrained(folder: Path) -> None:
    """Another tokenizer: two words of the vocabulary are swapped."""
    values = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    words = values["model"]["vocab"]
    first, second = [word for word in words if word.isalpha()][-2:]
    words[first], words[second] = words[second], words[first]
    (folder / "tokenizer.json").write_text(json.dumps(values), encoding="utf-8")


def rephrased(folder: Path) -> None:
    """Another chat template."""
    settings = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    edited("tokenizer_config.json", chat_template=f"Now then. {settings['chat_template']}")(folder)


OTHER: dict[str, Change] = {
    "rope_theta": edited("config.json", rope_theta=500.0),
    "tokenizer": retrained,
    "template": rephrased,
}
others = pytest.mark.parametrize("change", OTHER.values(), ids=OTHER)


# ---- the identity itself ---------------------------------------------------------------------------------------------


def test_how_a_config_is_written_does_not_matter(tmp_path: Path) -> None:
    folder = ouro_folder(tmp_path / "ouro", rope_theta=10000.0)
    before = identify(folder)
    values = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    values |= {"rope_theta": 10000, "transformers_version": "9.9", "_name_or_path": "elsewhere"}
    (folder / "config.json").write_text(json.dumps(dict(sorted(values.items())), indent=4), encoding="utf-8")
    assert identify(folder) == before
    assert before.version == 2
    assert before.weights == weights_sha256(folder)
    assert Identity.from_dict(json.loads(json.dumps(before.to_dict()))) == before


def test_whatever_may_act_on_what_is_computed_counts(tmp_path: Path) -> None:
    changes = {
        **OTHER,
        "eos_token_id": edited("config.json", eos_token_id=7),
        "unknown": edited("config.json", something_new=True),
        "special": edited("tokenizer_config.json", bos_token="<|endoftext|>"),
        "none": lambda folder: (folder / "tokenizer.json").unlink(),
        "apart": lambda folder: (folder / "chat_template.jinja").write_text("{{ bos_token }}", encoding="utf-8"),
    }  # fmt: skip
    found = {"as it was": identify(worded_folder(tmp_path / "plain"))}
    for name, change in changes.items():
        folder = worded_folder(tmp_path / name)
        change(folder)
        found[name] = identify(folder)
    assert len({each.key for each in found.values()}) == len(found)
    assert {each.weights for each in found.values()} == {found["as it was"].weights}
    assert found["none"].tokenizer is found["none"].template is None
    part, mine, theirs = found["as it was"].difference(found["rope_theta"]) or ("", "", "")
    assert (part, mine, theirs) == ("config.json", found["as it was"].config, found["rope_theta"].config)
    assert found["as it was"].difference(found["template"])[0] == "chat template"  # type: ignore[index]


def test_a_template_counts_as_it_acts(tmp_path: Path) -> None:
    """In the settings or in a file of its own, it is the same."""
    inside, apart = (ouro_folder(tmp_path / name) for name in ("inside", "apart"))
    edited("tokenizer_config.json", chat_template=None)(apart)
    (apart / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    assert identify(inside) == identify(apart)
    edited("tokenizer_config.json", chat_template="never looked at")(apart)
    assert identify(inside) == identify(apart)


def test_every_folder_has_an_identity_or_is_refused_in_a_line(tmp_path: Path, refused: Callable[..., str]) -> None:
    bare = write_folder(tmp_path / "bare", weights(), shards=2)
    assert (identify(bare).tokenizer, identify(bare).weights) == (None, weights_sha256(bare))
    spoilt = stack_folder(tmp_path / "spoilt", "llama")
    edited("config.json", rope_theta=float("nan"))(spoilt)
    assert "config.json: value.rope_theta is nan" in refused(InputError, identify, spoilt)
    assert "is no checkpoint" in refused(InputError, identify, tmp_path)
    for told in ({}, {"version": 1, "weights": "0" * 64}, {"version": 2, "weights": "0", "config": "0" * 64}):
        with pytest.raises(ValueError, match="no identity"):
            Identity.from_dict(told)


# ---- tests -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def command(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[int, str, str]]:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    worded_folder(tmp_path / "model")
    worded_map(tmp_path / "map")
    return lambda *arguments: loopscope(capsys, *arguments)


WALKS = ("lm", "test", "letters", "model", "--map", "map", "--test", "walks", "--pairs", "2")


@others
def test_a_test_of_another_model_is_made_anew(
    command: Callable[..., tuple[int, str, str]], tmp_path: Path, change: Change
) -> None:
    assert command(*WALKS)[0] == 0
    before = everything_under(tmp_path / "store")
    assert command(*WALKS)[0] == 0
    assert everything_under(tmp_path / "store") == before
    change(tmp_path / "model")
    code, out, _ = command(*WALKS, "--json")
    first, second = Store(tmp_path / "store").every(RECORD)
    assert (code, first.manifest.inputs["weights"]) == (0, second.manifest.inputs["weights"])
    assert first.manifest.inputs["identity"] != second.manifest.inputs["identity"]
    (made,) = json.loads(out)["records"]
    assert made["identity"] == identify(tmp_path / "model").to_dict()
    assert len({identity(load(each)) for each in (first, second)}) == 2


def test_a_record_of_version_1_is_read_but_not_taken_for_a_new_one(
    command: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    subject = load_language(tmp_path / "model", tmp_path / "map")
    (made,) = measure_letters(subject, Store(tmp_path / "elsewhere"), tests=("walks",), count=2)
    notes = {key: value for key, value in made.notes.items() if key != "identity"}
    notes["map"] = {key: value for key, value in notes["map"].items() if key != "provenance"}
    released = type(made)(made.experiment, made.facts, made.predictions, made.settings, made.cost, notes, made.raw)
    store = Store(tmp_path / "store")
    old = save(store, released, {"weights": subject.key, "map": map_key(subject.step)})
    assert config_of("letters", "model", made.settings) == old.manifest.config
    assert identity_of(load(old)) == {"version": 1, "weights": subject.key}
    assert command(*WALKS)[0] == 0
    assert len(records(store)) == 2
    code, out, _ = command("claims", "--results", "store", "--json")
    (claim,) = (each for each in json.loads(out)["claims"] if each["id"] == "letter.steer")
    assert (code, claim["backbones"]) == (0, ["model"])


# ---- training --------------------------------------------------------------------------------------------------------


@others
def test_a_map_is_fitted_anew_to_another_model(tmp_path: Path, change: Change) -> None:
    folder, store = tuning_folder(tmp_path / "llama"), Store(tmp_path / "store")
    recipe = small("antonym-map", "updates=1", "rank=4")

    def fitted() -> jobs.Finished:
        return fit(folder, recipe, store, Settings(torch.device("cpu")), sources=sources())

    first = fitted()
    assert fitted().key == first.key
    known = read_fitted(first.folder)
    assert known is not None
    assert known.identity == identify(folder)
    change(folder)
    second = fitted()
    assert second.key != first.key
    assert len(store.every(jobs.KIND)) == 2


def test_a_map_of_version_1_is_not_taken_for_a_new_one(tmp_path: Path) -> None:
    folder, store = tuning_folder(tmp_path / "llama"), Store(tmp_path / "store")
    recipe, settings = small("antonym-map", "updates=1", "rank=4"), Settings(torch.device("cpu"))
    job = jobs.prepared(folder, recipe, settings, sources(), None)
    with store.write(jobs.KIND, job.config, {"weights": weights_sha256(folder)}) as draft:
        draft.json("nothing.json", {})
    assert fit(folder, recipe, store, settings, sources=sources()).key != draft.artefact.key


@others
def test_a_model_is_trained_anew_from_another(tmp_path: Path, change: Change, refused: Callable[..., str]) -> None:
    folder, store = tuning_folder(tmp_path / "llama"), Store(tmp_path / "store")
    recipe = small("smol-letter", "updates=1")

    def trained(out: str) -> jobs.Finished:
        return finetune(folder, recipe, tmp_path / out, store, Settings(torch.device("cpu")), sources=sources())

    first = trained("out")
    assert trained("out").history == first.history
    change(folder)
    before = everything_under(tmp_path / "out")
    assert "exists already" in refused(InputError, trained, "out")
    assert everything_under(tmp_path / "out") == before
    trained("other")
    told = [json.loads((tmp_path / out / "loopscope.json").read_text(encoding="utf-8")) for out in ("out", "other")]
    assert told[0]["job"] != told[1]["job"]
    assert told[0]["from"] == told[1]["from"]
    assert len(store.every(jobs.TRAINING)) == 2


def test_a_map_that_was_fitted_with_another_boundary_wants_it(tmp_path: Path, refused: Callable[..., str]) -> None:
    folder, store = tuning_folder(tmp_path / "llama"), Store(tmp_path / "store")
    recipe = small("antonym-map", "updates=1", "rank=4", "boundary=norm")
    step = fit(folder, recipe, store, Settings(torch.device("cpu")), sources=sources()).folder
    assert "is run with boundary none; --any-map" in refused(InputError, load_language, folder, step)
    assert load_language(folder, step, boundary="norm").provenance.text == "fitted to this model"
    assert load_language(folder, step, any_map=True).provenance.misfit


# ---- maps of other models --------------------------------------------------------------------------------------------


def claim_to(step: Path, folder: Path, *, boundary: str = "none", version: int = 2) -> None:
    """Let a saved map say that it was fitted to a model folder."""
    who = identify(folder)
    told = {"weights": who.weights, "boundary": boundary, "recipe": {"loops": 3}}
    (step / "fitted.json").write_text(json.dumps(told | ({"identity": who.to_dict()} if version == 2 else {})))


MISFITS: dict[str, tuple[Change, str]] = {
    "weights": (
        edited("fitted.json", weights="0" * 64, identity=None),
        "was fitted to weights of SHA-256 000000000000..., but those of model have",
    ),
    "config": (lambda step: OTHER["rope_theta"](step.parent / "model"), "was fitted to a model whose config.json has"),
    "tokenizer": (lambda step: retrained(step.parent / "model"), "was fitted to a model whose tokenizer.json has"),
    "template": (lambda step: rephrased(step.parent / "model"), "was fitted to a model whose chat template has"),
    "boundary": (
        edited("fitted.json", boundary="norm"),
        "map was fitted with boundary norm, but model is run with boundary none",
    ),
}
COMMANDS: dict[str, tuple[str, ...]] = {
    "patch": ("lm", "patch", "model", "F J:step F", "--text", "Monday", "--map", "step=map"),
    "sweep": ("lm", "sweep", "model", "resid", "--text", "Monday", "--from", "Tuesday", "--program", "F J:step F",
              "--map", "step=map", "--loop", "1", "--layer", "1"),
    "test": WALKS,
}  # fmt: skip


@pytest.mark.parametrize(("misfit", "said"), MISFITS.values(), ids=MISFITS)
@pytest.mark.parametrize("name", COMMANDS)
def test_a_map_of_another_model_is_refused_unless_any_is_asked_for(
    command: Callable[..., tuple[int, str, str]], tmp_path: Path, name: str, misfit: Change, said: str
) -> None:
    asked = COMMANDS[name]
    claim_to(tmp_path / "map", tmp_path / "model")
    misfit(tmp_path / "map")
    code, out, err = command(*asked)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert said in err
    assert "--any-map takes it all the same" in err
    assert not (tmp_path / "store").exists()
    code, out, err = command(*asked, "--any-map", "--json")
    assert code == 0, err
    report = json.loads(out)
    (told,) = [each["notes"]["map"] for each in report["records"]] if name == "test" else report["maps"].values()
    assert told["provenance"] == "fitted to another model or boundary (--any-map)"
    assert told["fitted_to"]["weights"]
    assert "fitted to another model or boundary (--any-map)" in command(*asked, "--any-map")[1]


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("name", COMMANDS)
def test_a_map_of_the_model_is_taken(
    command: Callable[..., tuple[int, str, str]], tmp_path: Path, name: str, version: int
) -> None:
    """By its identity or, where it has only version 1 of that, by weights and boundary."""
    assert "of unknown provenance: it does not say what it was fitted to" in command(*COMMANDS[name])[1]
    claim_to(tmp_path / "map", tmp_path / "model", version=version)
    code, out, _ = command(*COMMANDS[name], "--any-map")  # which changes nothing
    words = "fitted to this model" if version == 2 else "fitted to these weights (identity version 1)"
    assert (code, words in out) == (0, True)
    if version == 1:
        edited("fitted.json", boundary="norm")(tmp_path / "map")
        assert command(*COMMANDS[name])[0] == 2
    if name == "test":
        assert not any("any_map" in each.settings for each in records(Store(tmp_path / "store")))


def test_what_a_map_of_another_model_gives_is_a_record_of_its_own(
    command: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    """No claim is judged by it, and it is found for nothing else."""
    assert command(*WALKS, "--boundary", "norm")[0] == 0
    claim_to(tmp_path / "map", tmp_path / "model")
    edited("fitted.json", recipe=None)(tmp_path / "map")
    assert command(*WALKS, "--boundary", "norm")[0] == 2
    assert command(*WALKS, "--boundary", "norm", "--any-map")[0] == 0
    plain, other = sorted(records(Store(tmp_path / "store")), key=lambda each: "any_map" in each.settings)
    assert other.settings == {**plain.settings, "any_map": True}
    assert scale_of(other) == f"{scale_of(plain)}, with a map that was not fitted to it so"
    for artefact in Store(tmp_path / "store").every(RECORD):
        if "any_map" not in artefact.manifest.config["settings"]:
            Store(tmp_path / "store").remove(RECORD, artefact.key)
    code, out, _ = command("claims", "--results", "store", "--json")
    (claim,) = (each for each in json.loads(out)["claims"] if each["id"] == "letter.steer")
    assert (code, claim["verdict"], claim["backbones"]) == (0, "not run", [])


def test_a_tokenizer_beside_a_model_is_its_own(tmp_path: Path) -> None:
    """The identity is of the folder, wherever its files came from."""
    bare = write_folder(tmp_path / "bare", weights())
    before = identify(bare)
    put_tokenizer(bare)
    assert (before.weights, before.config) == (identify(bare).weights, identify(bare).config)
    assert before.key != identify(bare).key
