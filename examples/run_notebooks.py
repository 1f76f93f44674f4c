"""Run the notebooks of this folder and keep what they print and draw: `make notebooks`.

    python examples/run_notebooks.py                     # all of them
    python examples/run_notebooks.py your-task.ipynb     # some

SmolLM2's weights are fetched once into `smollm2-135m`, or taken from the folder that the variable SMOLLM2 names.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient

HERE = Path(__file__).parent
SMOLLM2 = "smollm2-looped.ipynb"
MOST_SECONDS = 600
MOST_BYTES = 300_000


def executed(file: Path) -> nbformat.NotebookNode:
    """A notebook with what its cells give now; nothing that differs from run to run beside that."""
    book = nbformat.read(file, as_version=4)
    client = NotebookClient(
        book, timeout=MOST_SECONDS, resources={"metadata": {"path": str(file.parent)}}, record_timing=False
    )
    client.execute()
    return book


def write(file: Path) -> None:
    """Run a notebook and write it, unless it has grown too heavy to be kept."""
    book = executed(file)
    text = nbformat.writes(book) + "\n"
    if len(text.encode()) > MOST_BYTES:
        raise SystemExit(f"{file.name} would have {len(text.encode()):,} bytes, more than {MOST_BYTES:,}")
    file.write_text(text, encoding="utf-8")
    print(f"{file.name}: {len(text.encode()):,} bytes")


def have_smollm2() -> None:
    """Fetch the weights where they are not there yet."""
    folder = Path(os.environ.setdefault("SMOLLM2", str(HERE.parent / "smollm2-135m")))
    if not folder.is_dir():
        from loopscope.models import smollm2

        smollm2.get(folder)


if __name__ == "__main__":
    for file in [HERE / name for name in sys.argv[1:]] or sorted(HERE.glob("*.ipynb")):
        if file.name == SMOLLM2:
            have_smollm2()
        write(file)
