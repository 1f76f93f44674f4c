"""What an instrument finds: a table with typed columns, which prints in a line and goes wherever tables go.

    found["norm"]                       a column, as an array
    found.where(loop=3)                 the rows at a place
    found.grid("norm", "loop", "layer") a column as an array [loops, layers]
    found.to_frame(), found.save("found.parquet"), found.plot()

An estimate is three columns: `norm`, and its interval `norm_low` and `norm_high`.
"""

from __future__ import annotations

import csv
import html
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from jaxtyping import Shaped
from torch import Tensor

from loopscope.bounds import line
from loopscope.errors import InputError, nearest
from loopscope.estimates import Estimates
from loopscope.models.extras import extra
from loopscope.store.outputs import check_file, write_file
from loopscope.store.tensors import write_tensors

Column: TypeAlias = Shaped[np.ndarray, " rows"]
Cell: TypeAlias = str | int | float | bool | None
Columns: TypeAlias = Mapping[str, Any]
"""What columns are made of: sequences, arrays, tensors or `Estimates`."""

FORMATS = (".csv", ".parquet", ".safetensors")
SHOWN = 12
"""Rows of a table that are printed."""


class Table:
    """Named columns of one length: texts, whole numbers, floats or yes and no.

    - `kind` says what the rows are, "trajectories"; it decides what `plot` draws.
    - `columns`, in order, are sequences, NumPy arrays, tensors or `Estimates`.  None is a missing text; a missing
      number is NaN, and its column one of floats.
    - `about` is what holds for all rows, such as the program and the model: anything that is JSON.

    InputError for columns of unequal length, of more than one axis, or of anything else.
    """

    def __init__(self, kind: str, columns: Columns, about: Mapping[str, Any] | None = None) -> None:
        self.kind = kind
        self.about = dict(about or {})
        self._columns: dict[str, Column] = {}
        for name, values in columns.items():
            if isinstance(values, Estimates):
                self._columns |= {name: values.value, f"{name}_low": values.low, f"{name}_high": values.high}
            else:
                self._columns[name] = _typed(name, values)
        self._estimated = [name for name in self._columns if {f"{name}_low", f"{name}_high"} <= self._columns.keys()]
        lengths = {name: each.shape for name, each in self._columns.items()}
        if any(len(shape) != 1 or shape != next(iter(lengths.values())) for shape in lengths.values()):
            listed = ", ".join(f"{name} {list(shape)}" for name, shape in lengths.items())
            raise InputError(f"the columns of a table have one axis and one length, not {listed}")

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns, in order."""
        return tuple(self._columns)

    @property
    def estimated(self) -> tuple[str, ...]:
        """The columns that have an interval beside them."""
        return tuple(self._estimated)

    def __len__(self) -> int:
        return len(next(iter(self._columns.values()), ()))

    def __getitem__(self, name: str) -> Column:
        """A column; InputError for one that is not there."""
        if name not in self._columns:
            raise InputError(f"no column {name!r} in {self.kind}: {', '.join(self.names)}{nearest(name, self.names)}")
        return self._columns[name]

    def __iter__(self) -> Iterator[dict[str, Cell]]:
        """The rows, each as a dictionary of plain values."""
        return self._rows(None)

    def _rows(self, stop: int | None) -> Iterator[dict[str, Cell]]:
        columns = [each[:stop].tolist() for each in self._columns.values()]
        return (dict(zip(self._columns, row, strict=True)) for row in zip(*columns, strict=True))

    def where(self, **place: Cell) -> Table:
        """The rows whose columns have these values, which may be none; None and NaN are a missing one."""
        kept = np.ones(len(self), dtype=bool)
        for name, value in place.items():
            kept &= self._is_missing(name) if _missing(value) else self[name] == value
        return Table(self.kind, {name: each[kept] for name, each in self._columns.items()}, self.about)

    def _is_missing(self, name: str) -> Shaped[np.ndarray, " rows"]:
        """Where a column has no value."""
        return np.array([_missing(cell) for cell in self[name].tolist()], dtype=bool)

    def grid(self, name: str, *by: str) -> tuple[Shaped[np.ndarray, "*places"], tuple[list[Cell], ...]]:
        """A column spread over places, and the values of `by` along each axis; None or NaN where there is no row.

        The values stand in the order in which they first come.  InputError where two rows have one place.
        """
        column, axes, places = self[name], [], []
        for each in by:
            values = self[each].tolist()
            order = {value: at for at, value in enumerate(dict.fromkeys(values))}
            axes.append([*order])
            places.append([order[value] for value in values])
        shape = tuple(map(len, axes))
        if len(set(zip(*places, strict=True))) != len(self):
            raise InputError(f"several rows of {self.kind} have the same {', '.join(by)}; choose some with where(...)")
        kind = column.dtype if column.dtype.kind in "Of" else np.dtype(np.float64)
        spread = np.full(shape, None if kind.kind == "O" else np.nan, dtype=kind)
        spread[tuple(places)] = column
        return spread, tuple(axes)

    def to_frame(self, library: str = "pandas") -> Any:
        """The table as a data frame of pandas or polars; InputError where that is not installed."""
        if library not in ("pandas", "polars"):
            known = ("pandas", "polars")
            raise InputError(f"data frames are of {' or '.join(known)}, not {library}{nearest(library, known)}")
        frames = extra(library, "a data frame", "tables" if library == "pandas" else None)
        return frames.DataFrame(dict(self._columns))

    def save(self, file: str | Path) -> None:
        """Write a .parquet, .csv or .safetensors file, which must not exist; it appears whole or not at all.

        Parquet and safetensors keep `kind` and `about` in their metadata under "loopscope", as JSON.  In safetensors a
        column of texts is one of numbers, places in the list that the metadata has under "texts"; -1 is a missing one.
        """
        file = Path(file)
        check_output(file, self.kind)
        if file.suffix == ".safetensors":
            self._save_tensors(file)
        else:
            write_file(file, self._fill_csv if file.suffix == ".csv" else self._fill_parquet)

    def plot(self, **settings: Any) -> Any:
        """Draw the table as its kind is drawn, see `loopscope.plot`; a matplotlib figure."""
        from loopscope.plot import draw

        return draw(self, **settings)

    def __repr__(self) -> str:
        several = {name: len(set(each.tolist())) for name, each in self._columns.items() if each.dtype.kind in "iO"}
        counts = [f"{name} {count:,}" for name, count in several.items() if count > 1]
        numbers = [name for name in self._shown() if self._columns[name].dtype.kind in "fb"]
        words = "; ".join(filter(None, [f"{len(self):,} rows", ", ".join(counts), ", ".join(numbers)]))
        return f"<{self.kind}: {line(words)}>"

    def __str__(self) -> str:
        head, body = self._cells()
        widths = [max(map(len, column)) for column in zip(head, *body, strict=True)]
        lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in (head, *body)]
        return "\n".join([repr(self), *lines, *([f"... {len(self) - SHOWN:,} more"] if len(self) > SHOWN else [])])

    def _repr_html_(self) -> str:
        head, body = self._cells()
        rows = ["".join(f"<td>{html.escape(cell)}</td>" for cell in row) for row in body]
        more = f"<p>{len(self):,} rows</p>" if len(self) > SHOWN else ""
        heads = "".join(f"<th>{html.escape(name)}</th>" for name in head)
        body_html = "".join(f"<tr>{row}</tr>" for row in rows)
        return (
            f"<table><caption>{html.escape(self.kind)}</caption><thead><tr>{heads}</tr></thead>"
            f"<tbody>{body_html}</tbody></table>{more}"
        )

    def _shown(self) -> list[str]:
        """The columns that are printed: an interval stands with its estimate."""
        beside = {f"{name}_{end}" for name in self._estimated for end in ("low", "high")}
        return [name for name in self._columns if name not in beside]

    def _cells(self) -> tuple[list[str], list[list[str]]]:
        shown, body = self._shown(), []
        for row in self._rows(SHOWN):
            cells = []
            for name in shown:
                text = _text(row[name])
                if name in self._estimated and not _missing(row[f"{name}_low"]):
                    text += f" [{_text(row[f'{name}_low'])}, {_text(row[f'{name}_high'])}]"
                cells.append(text)
            body.append(cells)
        return shown, body

    def _fill_csv(self, draft: Path) -> None:
        with draft.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(self.names)
            writer.writerows([None if _missing(cell) else cell for cell in row.values()] for row in self)

    def _fill_parquet(self, draft: Path) -> None:
        arrow = extra("pyarrow", "a .parquet file", "tables")
        kinds = {"i": arrow.int64(), "f": arrow.float64(), "b": arrow.bool_(), "O": arrow.string()}
        columns = {
            name: arrow.array(each, kinds[each.dtype.kind], from_pandas=True) for name, each in self._columns.items()
        }
        table = arrow.table(columns).replace_schema_metadata({"loopscope": json.dumps(self._facts(), sort_keys=True)})
        extra("pyarrow.parquet", "a .parquet file", "tables").write_table(table, draft)

    def _save_tensors(self, file: Path) -> None:
        tensors: dict[str, Tensor] = {}
        texts: dict[str, list[str]] = {}
        for name, each in self._columns.items():
            if each.dtype.kind == "O":
                texts[name] = sorted({text for text in each.tolist() if text is not None})
                places = {text: at for at, text in enumerate(texts[name])} | {None: -1}
                tensors[name] = torch.tensor([places[text] for text in each.tolist()], dtype=torch.int64)
            else:
                tensors[name] = torch.from_numpy(each.copy())
        write_tensors(file, tensors, {**self._facts(), "columns": [*self.names], "texts": texts})

    def _facts(self) -> dict[str, Any]:
        return {"kind": self.kind, "about": self.about}


def check_output(file: Path, what: str) -> None:
    """InputError unless a table can be written to this file: its name, the folder, and what is there already."""
    check_file(file)
    if file.suffix not in FORMATS:
        raise InputError(f"{what} are written as {', '.join(FORMATS[:-1])} or {FORMATS[-1]}, not to {file.name}")
    if file.suffix == ".parquet":
        extra("pyarrow", "a .parquet file", "tables")


def _typed(name: str, values: Any) -> Column:
    """A column as an array of int64, float64, bool or, for texts, objects."""
    array = values.detach().cpu().double() if isinstance(values, Tensor) and values.is_floating_point() else values
    array = np.asarray(array) if isinstance(array, np.ndarray | Tensor) else _of_sequence(list(array))
    kind = array.dtype.kind
    if kind == "f":
        return array.astype(np.float64)
    if kind in "iu":
        return array.astype(np.int64)
    if kind == "b":
        return array
    if kind in "OU" and all(each is None or isinstance(each, str) for each in array.ravel().tolist()):
        return array.astype(object)
    raise InputError(f"column {name!r} holds neither numbers nor texts throughout, but {array.dtype}")


def _of_sequence(values: Sequence[Any]) -> Column:
    if any(isinstance(each, str) for each in values) or (values and all(each is None for each in values)):
        array = np.empty(len(values), dtype=object)
        array[:] = values
        return array
    return np.asarray([math.nan if each is None else each for each in values])


def _missing(cell: Cell) -> bool:
    return cell is None or (isinstance(cell, float) and math.isnan(cell))


def _text(cell: Cell) -> str:
    if _missing(cell):
        return "-"
    return f"{cell:.4g}" if isinstance(cell, float) else str(cell)
