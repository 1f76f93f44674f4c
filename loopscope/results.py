"""What every result can do besides what it is: print in a line, become a table, be saved, be drawn.

    found.table()                          the `Table` that holds it, or what people look at of it
    found.to_frame(), found.plot()         that table as a data frame, and as a picture
    found.save("found.parquet")            that table; as .safetensors all tensors, where a result is made of them

A result says what it holds in a few words and gives its table; the rest follows from these.
"""

from __future__ import annotations

import html
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from loopscope.bounds import line
from loopscope.store.tensors import write_tensors
from loopscope.table import Table, check_output


class Tabular(ABC):
    """A result that has a table."""

    @abstractmethod
    def table(self) -> Table:
        """The result as a table."""

    @abstractmethod
    def _words(self) -> str:
        """What it holds, in a few words."""

    def _tensors(self) -> Mapping[str, Tensor]:
        """The tensors it is made of; none where the table has everything."""
        return {}

    def to_frame(self, library: str = "pandas") -> Any:
        """The table as a data frame of pandas or polars; InputError where that is not installed."""
        return self.table().to_frame(library)

    def save(self, file: str | Path) -> None:
        """Write a new .parquet, .csv or .safetensors file, as `Table.save`; the last has all tensors by name."""
        file, tensors = Path(file), self._tensors()
        if file.suffix != ".safetensors" or not tensors:
            return self.table().save(file)
        check_output(file, type(self).__name__)
        write_tensors(file, tensors, {"kind": type(self).__name__, "told": self._words()})

    def plot(self, **settings: Any) -> Any:
        """Draw the table as its kind is drawn, see `loopscope.plot`; a matplotlib figure."""
        return self.table().plot(**settings)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {line(self._words())}>"

    def _repr_html_(self) -> str:
        return f"<p>{html.escape(repr(self))}</p>{self.table()._repr_html_()}"


def numbered(number: int, one: str) -> str:
    """So many things, "1 row" or "8 rows"."""
    return f"{number:,} {one}{'' if number == 1 else 's'}"
