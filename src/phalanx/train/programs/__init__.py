"""Programs started with `python -m`: data index, recipes, planning, network check."""

from __future__ import annotations

from argparse import ArgumentTypeError
from collections.abc import Callable
from typing import Any


def argument(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """Return `parse` as the type of an argparse argument: the message of its ValueError is shown."""

    def read(text: str) -> Any:
        try:
            return parse(text)
        except ValueError as error:
            raise ArgumentTypeError(str(error)) from error

    return read
