"""A saved map as a model of the Hugging Face hub: a plain upload of its folder, and nothing else.

    push(Path("mine"), target("me/mine"))

A repository that is not there yet is made, and is private; who may see it is changed on the hub.
"""

from __future__ import annotations

import os
from pathlib import Path

from loopscope.errors import InputError
from loopscope.models.extras import extra
from loopscope.models.hub import HubError, offline, parse
from loopscope.store.files import first_line


def target(text: str) -> str:
    """The name OWNER/NAME of a repository; InputError for another text, and where nothing may be sent or sends."""
    found = parse(text)
    if found is None or "/" not in found.name or found.revision != "main":
        raise InputError(f"{text!r:.120} names no repository of the hub; it is written OWNER/NAME")
    if offline():
        raise InputError(f"HF_HUB_OFFLINE is set, so that nothing is sent to {found.name}")
    extra("huggingface_hub", f"sending a map to {found.name}")
    return found.name


def push(folder: Path, name: str) -> str:
    """Upload the files of a folder; gives the address of the repository.

    HubError where the hub refuses or cannot be reached: the folder is as it was.
    """
    hub = extra("huggingface_hub", f"sending a map to {name}")
    api = hub.HfApi(endpoint=os.environ.get("HF_ENDPOINT"))
    try:
        made = api.create_repo(name, private=True, exist_ok=True)
        api.upload_folder(repo_id=name, folder_path=folder, commit_message=f"A map J: {folder.name}")
    except Exception as error:  # of the network and of the hub, in whatever way its libraries say it
        again = f"it stays in {folder}; hf upload {name} {folder} sends it"
        raise HubError(f"the map cannot be sent to {name}: {first_line(error)}; {again}") from error
    return str(made)
