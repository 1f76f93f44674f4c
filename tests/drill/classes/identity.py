"""What is kept in a store is found again for the same model only: weights, settings, tokenizer, template together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from tests.drill import mutations as do
from tests.drill.cases import Case, Change, Command, Group, Scene, World
from tests.drill.world import FEW

TEST = ("lm", "test", "iterations", "MODEL", "--map", "map", "--cases", "1", "--name", "m", "--store", "kept", "--json")
FIT = ("lm", "fit", "MODEL", "smol-letter-map", *FEW, "--store", "kept", "--json")
TUNE = ("lm", "finetune", "MODEL", "smol-letter-adapt", "--set", "grow_every=1", *FEW, "--store", "kept", "--json")
JOBS = {
    "tested": ("worded", ("map",), TEST, (), "record"),
    "fitted": ("llama", ("text.jsonl",), FIT, (), "lm-map"),
    "tuned": ("llama", ("text.jsonl",), TUNE, ("--out",), "lm-training"),
}
"""By name: the model, what else is needed, the command, the option that names an output, and what it keeps."""


def _settings(config: dict[str, Any]) -> dict[str, Any]:
    return dict(reversed(config.items()))


OTHERS: dict[str, Callable[[str], Change]] = {
    "another rope_theta": lambda name: do.put(f"{name}/config.json", ("rope_theta",), 777.0),
    "another rms_norm_eps": lambda name: do.put(f"{name}/config.json", ("rms_norm_eps",), 1e-3),
    "another end token": lambda name: do.put(f"{name}/config.json", ("eos_token_id",), 1),
    "another template": lambda name: do.replace(
        f"{name}/chat_template.jinja", b"{{ 'user ' }}{{ messages[0]['content'] }}{{ ' assistant ' }}"
    ),
    "another special token": lambda name: do.put(f"{name}/tokenizer_config.json", ("eos_token",), "<|endoftext|>"),
    "another tokenizer": lambda name: do.edit(
        f"{name}/tokenizer.json", lambda whole: whole.update(normalizer={"type": "Lowercase"})
    ),
}
SAME: dict[str, Callable[[str], Change]] = {
    "settings in another order": lambda name: do.edit(f"{name}/config.json", _settings),
    "a file beside": lambda name: do.replace(f"{name}/README.md", b"hello"),
    "nothing": lambda name: do.each(),
}


def identity(world: World, seed: int) -> Iterator[Case]:
    """The same command on a model and on a bent copy of it: two artefacts, or one where nothing that counts differs."""
    for job, (model, needs, argv, out, kind) in JOBS.items():
        before, after = (_command(argv, name, out) for name in (model, "bent"))
        scene = Scene((model, *needs), before, ("kept", "made-bent", f"made-{model}"))
        for told, change, count in [
            *((name, change, 2) for name, change in OTHERS.items()),
            *((name, change, 1) for name, change in SAME.items()),
        ]:
            bent = do.each(do.copy(model, "bent"), change("bent"))
            rounds = ((before,), (after,))
            yield Case("identity", f"{job}: {told}", scene, bent, rounds=rounds, check=_kept(kind, count))


def _command(argv: tuple[str, ...], name: str, out: tuple[str, ...]) -> Command:
    more = tuple(part for option in out for part in (option, f"made-{name}"))
    return Command((*(name if each == "MODEL" else each for each in argv), *more))


def _kept(kind: str, count: int) -> Callable[[Any], str]:
    """What is wrong unless so many artefacts of a kind are in the store afterwards."""

    def check(played: Any) -> str:
        where = f"work/kept/{kind}/"
        found = {
            path.split("/")[3] for path in played.after if path.startswith(where) and path.endswith("manifest.json")
        }
        return "" if len(found) == count else f"{len(found)} {kind} in the store, not {count}"

    return check


GROUPS: dict[str, Group] = {"identity": identity}
