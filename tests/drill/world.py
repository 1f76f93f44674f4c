"""The valid inputs that all cases start from, tiny and made anew for every drill.

ouro, llama, qwen3   model folders as they are released, with tokenizer and chat template
other                as llama, with other weights, to swap parts with
shards               as llama, in two shards with an index
worded               a Llama whose tokenizer knows the words of the tests
fresh                a model folder that Loopscope wrote
map, othermap        saved maps for worded and fresh; other values
fitted               a map that Loopscope fitted to `tuned`, with fitted.json; store as after `lm fit`
store, zoo           backbones, maps, a language model
results              a few stored records of the checkout
*.jsonl, *.txt       general text
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from contextlib import suppress
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from loopscope.maps import Dense, DiagonalLowRank, save_map
from loopscope.model import graph_walk_config
from loopscope.store.store import Store
from tests.drill.cases import World
from tests.model_folders import ouro_folder
from tests.ouro_tiny import write_folder
from tests.tiny import tiny_map, tiny_model
from tests.tuning_tiny import sources, tuning_folder
from tests.worded import worded_folder

RECORDS = {"graph-walks": ("9420b99f8f", "566153e5ef"), "language-models": ("d78a269886", "9eed64c45c")}
FEW = ("--updates", "2", "--set", "examples=5", "--set", "checked=1", "--device", "cpu", "--text", "text.jsonl")


def build(base: Path) -> World:
    """Make all inputs in an empty folder."""
    os.chdir(base)
    ouro_folder(base / "ouro")
    for kind in ("llama", "qwen3"):
        tuning_folder(base / kind, kind)
    tuning_folder(base / "other", "llama")
    weights = load_file(base / "other" / "model.safetensors")
    save_file({name: tensor * 1.25 for name, tensor in weights.items()}, base / "other" / "model.safetensors")
    _shards(base)
    shutil.copytree(base / "llama", base / "spoken")
    spoken = "{{ bos_token }}{{ eos_token }}{{ messages[0]['content'] }}"
    (base / "spoken" / "chat_template.jinja").write_text(spoken, encoding="utf-8")
    worded_folder(base / "worded")
    _maps(base)
    _texts(base)
    loopscope("lm", "new", "--out", "fresh", "--layers", "2", "--width", "16", "--heads", "2", "--words", "letters")
    loopscope("lm", "finetune", "llama", "smol-letter-adapt", "--out", "tuned", "--set", "grow_every=1", *FEW,
              "--store", "tuning")  # fmt: skip
    loopscope("lm", "fit", "tuned", "smol-letter-map", "--out", "fitted", *FEW, "--store", "tuning")
    _store(base / "store")
    _store(base / "zoo")
    loopscope("lm", "keep", "fresh", "tiny-lm", "--store", "zoo")
    _records(base / "results")
    _listed(base)
    _begun(base)
    settings = {**graph_walk_config().to_dict(), "width": 16, "mlp": 32}
    (base / "settings.json").write_text(json.dumps(settings), encoding="utf-8")
    return World(base)


def loopscope(*arguments: str) -> None:
    """Run a command in this process; whatever it says goes to standard error."""
    from loopscope.cli.app import main

    sys.argv = ["loopscope", *arguments]
    try:
        main()
    except SystemExit as error:
        if error.code:
            raise RuntimeError(f"loopscope {' '.join(arguments)}: exit code {error.code}") from None


def _shards(base: Path) -> None:
    config = json.loads((base / "llama" / "config.json").read_text(encoding="utf-8"))
    write_folder(base / "shards", load_file(base / "llama" / "model.safetensors"), config, shards=2)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (base / "shards" / name).write_bytes((base / "llama" / name).read_bytes())


def _maps(base: Path) -> None:
    for seed, name in enumerate(("map", "othermap")):
        step = Dense(16)
        with torch.no_grad():
            step.W.add_(torch.randn(step.W.shape, generator=torch.Generator().manual_seed(seed)) * 0.3)
        save_map(step, base / name)
    small = DiagonalLowRank(3, 1, seed=0)
    with torch.no_grad():
        small.B.add_(0.5)
    save_map(small, base / "small")


def _texts(base: Path) -> None:
    lines = [json.dumps({"text": each}) for each in sources()[0].documents]
    (base / "text.jsonl").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def _store(root: Path) -> None:
    """Two backbones with a map each, as training writes them."""
    store = Store(root)
    result = {"selected": {"update": 15000, "score": [1.0]}, "digests": {}, "history": []}
    for seed in (3, 4):
        model = tiny_model(seed=seed)
        config = {"recipe": {"name": "d8l6", "model": model.config.to_dict()}, "seed": seed}
        with store.write("backbone", config) as draft:
            weights = {name: tensor.to(torch.bfloat16) for name, tensor in model.state_dict().items()}
            draft.tensors("weights.safetensors", weights)
            draft.json("result.json", result)
        backbone = draft.artefact
        with store.write("map", {"recipe": {"name": "one"}, "fit": 1}, {"backbone": backbone}) as draft:
            from loopscope.maps import map_files

            for name, data in map_files(tiny_map(seed)).items():
                draft.bytes(name, data)
            draft.json("result.json", {"selected": {"update": 1200, "score": [0.98765, 0.5]}})


def _records(root: Path) -> None:
    """A few records of the checkout, small ones."""
    import loopscope as package

    shipped = Path(package.__file__).parent.parent / "results"
    target = Store(root)
    for name, keys in RECORDS.items():
        for key in keys:
            target.adopt(Store(shipped / name).open("record", key))


def _listed(base: Path) -> None:
    """The same records with an inventory, if this version writes one."""
    shutil.copytree(base / "results", base / "listed")
    with suppress(RuntimeError):
        loopscope("store", "inventory", "--write", "--store", "listed")


def _begun(base: Path) -> None:
    """A store with the checkpoints of a job that was killed before it was done."""
    pid = os.fork()
    if pid == 0:
        _stop_after_checkpoints()
        with suppress(BaseException):
            loopscope("lm", "finetune", "llama", "smol-letter-adapt", "--out", "made", "--set", "grow_every=1", *FEW,
                      "--store", "begun", "--save-every", "0")  # fmt: skip
        os._exit(0)
    os.waitpid(pid, 0)
    shutil.rmtree(base / "made", ignore_errors=True)


def _stop_after_checkpoints() -> None:
    """Kill this process when it lets go of its checkpoints, which is when it is done."""
    from loopscope.training.checkpoints import Checkpoints

    Checkpoints.clear = lambda self: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[method-assign]
