"""Language models by their names on the Hugging Face hub: from the local cache, or downloaded into it.

    find(parse("ByteDance/Ouro-1.4B")).folder            a model folder, as `models.folders.load` takes one
    find(parse("hf:ByteDance/Ouro-1.4B@refs/pr/1"))      another revision: a branch, a tag or a commit
    parse("hf:gpt2")                                     a name without an owner needs the prefix

The cache is that of `huggingface_hub` (HF_HUB_CACHE, else `hub` in HF_HOME).  A revision that is there is taken as it
is, without asking the hub whether it has moved.  What is missing is downloaded unless HF_HUB_OFFLINE is set:
safetensors, JSON, tokenizers and chat templates at the top of the repository; never code, pickles or folders.  A
snapshot is a model folder like any other, and nothing in it is executed.

A snapshot says by its own path which model and commit it is (`snapshot_of`); records keep that beside hashes.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from loopscope.errors import InputError, LoopscopeError
from loopscope.log import Log, silent
from loopscope.models.extras import extra
from loopscope.models.folders import CONFIG, INDEX, PICKLES, SINGLE
from loopscope.models.text import TOKENIZER
from loopscope.store.files import damaged, first_line, names_in, read, refuse_link, reporting
from loopscope.store.manifest import read_json

PREFIX = "hf:"
HOW = "OWNER/NAME or hf:OWNER/NAME@REVISION"
"""How a model of the hub is written, for errors."""

OFFLINE = "and HF_HUB_OFFLINE is set, so that nothing is downloaded"

WEIGHTS = ("*.safetensors",)
TEXTS = ("*.json", "*.model", "vocab.txt", "merges.txt", "chat_template.jinja")
"""What is downloaded, as patterns; all beside weights is small."""
LEFT_OUT = ("*/*", "consolidated*.safetensors")
"""What is not, though a pattern fits: folders, and the same weights in the form of another program."""

_PART = r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,94}[A-Za-z0-9_])?"
_NAME = re.compile(rf"(?:{_PART}/)?{_PART}")
_REVISION = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(?:/[A-Za-z0-9_][A-Za-z0-9_.-]*)*")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_REPOSITORY = "models--"


class HubError(LoopscopeError):
    """The hub could not be reached, or broke off.  No model folder was made of what had come."""


@dataclass(frozen=True)
class HubName:
    """A model of the hub and the revision that is asked for."""

    name: str
    revision: str = "main"

    def __str__(self) -> str:
        return self.name if self.revision == "main" else f"{self.name}@{self.revision}"


@dataclass(frozen=True)
class Snapshot:
    """A model of the hub as it was at a commit, in a folder of the cache."""

    name: str
    commit: str
    folder: Path

    def __str__(self) -> str:
        return f"{self.name} at commit {self.commit}"

    @property
    def origin(self) -> dict[str, str]:
        """As JSON, for records."""
        return {"name": self.name, "commit": self.commit}


def parse(asked: str) -> HubName | None:
    """The name of a model of the hub; None for what can be none, such as a path or a name without an owner.

    InputError for what begins with `hf:` and is none, and for a revision that can be none.
    """
    marked = asked.startswith(PREFIX)
    name, at, revision = asked.removeprefix(PREFIX).partition("@")
    if not _NAME.fullmatch(name) or "--" in name or ".." in name or name.endswith(".git"):
        if marked:
            raise InputError(f"{asked!r:.120} names no model of the hub; it is written {HOW}")
        return None
    if not marked and "/" not in name:
        return None
    if at and (not _REVISION.fullmatch(revision) or ".." in revision):
        raise InputError(f"{asked!r:.120}: {revision!r:.60} can be no revision; one is a branch, a tag or a commit")
    return HubName(name, revision) if at else HubName(name)


def find(asked: HubName, *, weights: bool = True, log: Log = silent) -> Snapshot:
    """The snapshot of a model: from the cache, else downloaded; `log` hears of a download.

    Without `weights` its tokenizer is enough.  InputError where there is no such model or revision, where nothing may
    be downloaded and the cache has it not, or where it has pickled weights alone; DamagedError for a snapshot with
    links that lead out of the cache; HubError where the hub cannot be reached.
    """
    cache = cache_folder()
    here = _cached(asked, cache)
    if here is not None and not _lacking(here.folder, weights, whole=True):
        return here
    # One without a tokenizer is good enough where nothing more can be had.
    enough = here is not None and not _lacking(here.folder, weights)
    if not offline():
        try:
            log(f"fetching {asked} from the hub")
            # What is begun is completed, even if the branch has moved since.
            here = _fetched(asked.name, asked.revision if here is None else here.commit, cache, weights)
        except (InputError, HubError):
            if not enough:
                raise
    elif here is None:
        raise InputError(_unknown(asked, cache))
    assert here is not None
    if lacking := _lacking(here.folder, weights):
        raise InputError(_incomplete(here, lacking))
    return here


def snapshot_of(folder: str | Path) -> Snapshot | None:
    """The model of the hub that a folder is a snapshot of, as its path says; None of any other folder."""
    place = Path(os.path.abspath(folder))
    commit, repository = place.name, place.parent.parent.name
    if place.parent.name != "snapshots" or not _COMMIT.fullmatch(commit) or not repository.startswith(_REPOSITORY):
        return None
    return Snapshot(repository.removeprefix(_REPOSITORY).replace("--", "/"), commit, place)


def origin_of(folder: str | Path) -> dict[str, dict[str, str]]:
    """What records say of a folder that is a snapshot, {"hub": {"name": ..., "commit": ...}}; {} of any other."""
    found = snapshot_of(folder)
    return {} if found is None else {"hub": found.origin}


def called(folder: str | Path) -> str:
    """What tables call the model in a folder: as its folder, or a snapshot as on the hub, without its owner."""
    found = snapshot_of(folder)
    return Path(folder).resolve().name if found is None else found.name.rpartition("/")[2]


def cache_folder() -> Path:
    """The folder of the cache, as `huggingface_hub` finds it; it need not be there."""
    at_home = os.path.join(os.environ.get("XDG_CACHE_HOME", os.path.join("~", ".cache")), "huggingface")
    default = os.path.join(os.environ.get("HF_HOME", at_home), "hub")
    chosen = os.environ.get("HF_HUB_CACHE", os.environ.get("HUGGINGFACE_HUB_CACHE", default))
    return Path(os.path.expandvars(os.path.expanduser(chosen)))


def offline() -> bool:
    """Whether nothing may be downloaded."""
    said = os.environ.get("HF_HUB_OFFLINE") or os.environ.get("TRANSFORMERS_OFFLINE") or ""
    return said.upper() in ("1", "ON", "YES", "TRUE")


def check_links(folder: Path) -> None:
    """DamagedError unless every link in a snapshot leads to a file among the blobs of its own model."""
    snapshots = folder.parent
    blobs = snapshots.parent / "blobs"
    for part in (snapshots, folder, blobs):
        refuse_link(part, "a folder")
    inside = os.path.realpath(blobs)
    for file in (folder / name for name in names_in(folder)):
        if file.is_symlink() and os.path.dirname(os.path.realpath(file)) != inside:
            raise damaged(
                file, f"a link to a file in {blobs}", f"a link to {os.readlink(file)!r}, which is not followed"
            )


# ---- the cache -------------------------------------------------------------------------------------------------------


def _repository(asked: HubName, cache: Path) -> Path:
    return cache / f"{_REPOSITORY}{asked.name.replace('/', '--')}"


def _cached(asked: HubName, cache: Path) -> Snapshot | None:
    """What the cache has of a revision, whole or not; None where it has nothing of it."""
    repository = _repository(asked, cache)
    commit = asked.revision if _COMMIT.fullmatch(asked.revision) else _noted(repository / "refs" / asked.revision)
    if commit is None:
        return None
    folder = repository / "snapshots" / commit
    with reporting("look at", folder):
        if not folder.is_dir():
            return None
    check_links(folder)
    return Snapshot(asked.name, commit, folder)


def _noted(ref: Path) -> str | None:
    """The commit that a branch or tag was at, when it was last looked up; DamagedError for a file that names none."""
    if not os.path.lexists(ref) or ref.is_dir():  # "refs/pr" is a folder of them
        return None
    found = read(ref, limit=200, links=False).decode(errors="replace").strip()
    if not _COMMIT.fullmatch(found):
        raise damaged(ref, "a commit", repr(found)[:60])
    return found


def _lacking(folder: Path, weights: bool, whole: bool = False) -> str:
    """A file that a snapshot cannot do without and lacks, "" where it has all; `whole`: its tokenizer, too."""
    wanted = [CONFIG] if weights else []
    if whole or not weights:
        wanted.append(TOKENIZER)
    if weights and not (folder / SINGLE).is_file():
        wanted += _shards(folder / INDEX) if (folder / INDEX).is_file() else [SINGLE]
    return next((name for name in wanted if not (folder / name).is_file()), "")


def _shards(index: Path) -> list[str]:
    """The files that an index lists; none where it lists nothing sensible, which whoever loads them tells."""
    listed = read_json(index).get("weight_map")
    return sorted({each for each in listed.values() if isinstance(each, str)}) if isinstance(listed, dict) else []


def _unknown(asked: HubName, cache: Path) -> str:
    """Why there is nothing of a name where nothing may be downloaded."""
    refs = _repository(asked, cache) / "refs"
    known = sorted(str(each.relative_to(refs)) for each in refs.rglob("*") if each.is_file())
    has = f"{asked.name} with revision {', '.join(known)} alone" if known else f"no {asked.name}"
    return f"there is no folder {asked}, the cache {cache} has {has}, {OFFLINE}"


def _incomplete(here: Snapshot, lacking: str) -> str:
    """Why a snapshot is of no use as it is."""
    pickles = [name for name in names_in(here.folder) if name.endswith(PICKLES)]
    if lacking == SINGLE and pickles:
        return (
            f"{here} has only pickled weights, {pickles[0]}, which are never opened unasked; "
            f"loopscope lm convert {here.folder} --out FOLDER writes them as safetensors"
        )
    if offline():
        return f"{here} is in the cache without {lacking}, {OFFLINE}"
    if lacking == SINGLE:
        return (
            f"{here} has no safetensors; pickled weights are not downloaded: "
            f"hf download {here.name} --revision {here.commit}, then loopscope lm convert {here.folder} --out FOLDER"
        )
    return f"{here} has no {lacking}"


# ---- the hub ---------------------------------------------------------------------------------------------------------


def _fetched(name: str, revision: str, cache: Path, weights: bool) -> Snapshot:
    """What is missing of a revision, downloaded into the cache."""
    hub = extra("huggingface_hub", f"downloading {name}")
    errors = extra("huggingface_hub.errors", f"downloading {name}")
    patterns = [*TEXTS, *(WEIGHTS if weights else ())]
    try:
        made = hub.snapshot_download(
            name, revision=revision, cache_dir=cache, allow_patterns=patterns, ignore_patterns=list(LEFT_OUT)
        )
    except errors.GatedRepoError:
        raise InputError(f"{name} is given to those alone who accept its terms on the hub and log in") from None
    except errors.RepositoryNotFoundError:
        raise InputError(f"there is no folder {name}, and the hub shows you no model of that name") from None
    except errors.RevisionNotFoundError:
        raise InputError(f"{name} has no revision {revision} on the hub") from None
    except Exception as error:  # of the network, in whatever way its libraries say it
        said = first_line(error)
        raise HubError(f"there is no folder {name}, and it cannot be downloaded into {cache}: {said}") from error
    folder = Path(made)
    found = snapshot_of(folder)
    if found is None:
        raise damaged(folder, "a snapshot", "something else")
    check_links(folder)
    return found
