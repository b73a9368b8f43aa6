"""Access to Parquet files: the only module that imports pyarrow, when a file is opened."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from phalanx.errors import DataCorrupt, NotSupported, UserError
from phalanx.kit.text import nearest


def open_parquet(path: Path) -> Any:
    """Open a ParquetFile over a memory map: safe after a fork, without a file position."""
    try:
        import pyarrow  # type: ignore[import-untyped, unused-ignore]
        import pyarrow.parquet  # type: ignore[import-untyped, unused-ignore]
    except ImportError as error:
        raise NotSupported(
            "reading Parquet needs pyarrow", "pip install 'phalanx[data]'"
        ) from error
    try:
        return pyarrow.parquet.ParquetFile(path, memory_map=True, pre_buffer=False)
    except (pyarrow.ArrowException, OSError) as error:
        raise DataCorrupt(f"{path} cannot be read as Parquet: {error}") from error


def group_rows(path: Path) -> list[int]:
    """Return the number of rows of each row group."""
    with open_parquet(path) as file:
        about = file.metadata
        return [about.row_group(i).num_rows for i in range(about.num_row_groups)]


def check_columns(file: Any, columns: Sequence[str], path: Path) -> None:
    """Raise UserError when the file lacks one of the columns."""
    names = file.schema_arrow.names
    for column in columns:
        if column not in names:
            near = nearest(column, names)
            hint = f"did you mean {near!r}?" if near else f"the columns are {', '.join(names)}"
            raise UserError(f"{path} has no column {column!r}", hint)


def read_group(file: Any, group: int, columns: Sequence[str], path: Path) -> Any:
    """Read one row group as an Arrow table. Raises DataCorrupt."""
    import pyarrow

    try:
        return file.read_row_group(group, columns=list(columns), use_threads=False)
    except (pyarrow.ArrowException, OSError) as error:
        raise DataCorrupt(f"row group {group} of {path} cannot be read: {error}") from error


def column_getter(chunked: Any) -> Any:
    """Return an object that gives a row's value when indexed: an array where the type allows it."""
    import pyarrow

    array = chunked.combine_chunks()
    if isinstance(array, pyarrow.ChunkedArray):
        array = array.chunk(0) if array.num_chunks else pyarrow.array([], chunked.type)
    kind = array.type
    if array.null_count == 0:
        if pyarrow.types.is_integer(kind) or pyarrow.types.is_floating(kind):
            return array.to_numpy(zero_copy_only=False)
        if pyarrow.types.is_fixed_size_list(kind) and _plain(kind.value_type):
            values = array.flatten()
            if values.null_count == 0:
                return values.to_numpy(zero_copy_only=False).reshape(len(array), kind.list_size)
    return ArrowValues(array)


def _plain(kind: Any) -> bool:
    import pyarrow

    return bool(pyarrow.types.is_integer(kind) or pyarrow.types.is_floating(kind))


class ArrowValues:
    """An Arrow array that gives Python values; lists of numbers come as numpy arrays."""

    def __init__(self, array: Any) -> None:
        import pyarrow

        self.array = array
        kind = array.type
        lists = pyarrow.types.is_list(kind) or pyarrow.types.is_large_list(kind)
        self._get = self._numbers if lists and _plain(kind.value_type) else self._plain_value

    def __getitem__(self, row: int) -> Any:
        return self._get(row)

    def _plain_value(self, row: int) -> Any:
        return self.array[row].as_py()

    def _numbers(self, row: int) -> Any:
        values = self.array[row].values
        return None if values is None else values.to_numpy(zero_copy_only=False).copy()
