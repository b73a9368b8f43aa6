"""Read a billing export as a stream: one row at a time, whatever its size."""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from phalanx.core.cost.bill_formats import BillFault, BillMapping, bill_reader
from phalanx.core.cost.bills import BillLine
from phalanx.errors import UserError

MOST_ROWS = 1_000_000
"""Rows of one file."""
_MOST_ROW = 1 << 20
_MOST_CELL = 1 << 17


def bill_lines(path: Path, mapping: BillMapping | None) -> Iterator[BillLine]:
    """The lines of a CSV file, or of one that gzip has compressed.

    Raises UserError with the file and the line for what cannot be read.
    """
    with _opened(path) as stream:
        yield from lines_of(stream, str(path), mapping)


def lines_of(stream: TextIO, name: str, mapping: BillMapping | None) -> Iterator[BillLine]:
    """The same of an open file. `name` is that of the file in messages."""
    rows = csv.reader(_short_lines(stream, name))
    previous = csv.field_size_limit(_MOST_CELL)
    try:
        header = next(rows, None)
        if not header:
            raise UserError(f"{name} is empty", "its first line names the columns")
        reader = bill_reader(header, mapping)
        for number, row in enumerate(rows):
            if number >= MOST_ROWS:
                raise UserError(f"{name} has more than {MOST_ROWS} rows", "import it in parts")
            if not any(row):
                continue  # an empty line, such as the last one
            line = reader.read(row)
            if line is not None:
                yield line
    except BillFault as fault:
        raise UserError(f"{name}, line {rows.line_num}: {fault}") from None
    except csv.Error as error:
        raise UserError(f"{name}, line {rows.line_num}: it is no CSV: {error}") from None
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{name} cannot be read: {error}") from None
    except UnicodeDecodeError:
        raise UserError(f"{name} is not UTF-8", "export it as UTF-8") from None
    finally:
        csv.field_size_limit(previous)


@contextmanager
def _opened(path: Path) -> Iterator[TextIO]:
    try:
        raw = path.open("rb")
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error}") from None
    with raw:
        packed = raw.peek(2)[:2] == b"\x1f\x8b"
        source = gzip.GzipFile(fileobj=raw) if packed else raw
        with io.TextIOWrapper(source, "utf-8-sig", newline="") as text:
            yield text


def _short_lines(stream: TextIO, name: str) -> Iterator[str]:
    """The lines of a file, with a limit on each: a file without line breaks does not fill the memory."""
    while line := stream.readline(_MOST_ROW + 1):
        if len(line) > _MOST_ROW:
            raise UserError(f"{name} has a line of more than {_MOST_ROW} characters")
        if "\x00" in line:
            raise UserError(f"{name} is no text: it has a zero byte", "export it as CSV")
        yield line
