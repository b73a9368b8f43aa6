"""Read values of a foreign document with their types; what has another type is a problem with its line."""

from __future__ import annotations

from typing import Any

from phalanx.schemas.foreign.documents import ForeignDocument, Path, unfilled_in
from phalanx.schemas.foreign.rules import ConversionLog, KeyAction, shown


class ForeignReader:
    """A place in a document. Places that do not exist read as empty."""

    def __init__(self, document: ForeignDocument, log: ConversionLog, path: Path = ()) -> None:
        self.document, self.log, self.path = document, log, path

    @property
    def line(self) -> int:
        """The line of the place."""
        return self.document.line(self.path)

    @property
    def shown(self) -> str:
        """The path of the place as text."""
        return shown(self.path)

    def line_of(self, key: str) -> int:
        """The line of a key of the place."""
        return self.document.line((*self.path, key))

    def at(self, key: str | int) -> ForeignReader:
        """The place below a key or entry."""
        return ForeignReader(self.document, self.log, (*self.path, key))

    def data(self) -> dict[str, Any]:
        """The mapping at the place; {} where there is none."""
        here: Any = self.document.data
        for part in self.path:
            if isinstance(here, dict) and isinstance(part, str):
                here = here.get(part)
            elif isinstance(here, list) and isinstance(part, int) and part < len(here):
                here = here[part]
            else:
                return {}
        return here if isinstance(here, dict) else {}

    def value(self, key: str) -> Any:
        """The value of a key, of any type, or None."""
        return self.data().get(key)

    def text(self, key: str) -> str | None:
        """A text, or None."""
        found = self.value(key)
        if found is None or (isinstance(found, str) and found):
            return found
        self.refuse(key, "must be text; put it in quotes", found)
        return None

    def whole(self, key: str, low: int, high: int) -> int | None:
        """A whole number within limits, also as text of digits, or None."""
        found = self.value(key)
        if found is None:
            return None
        if isinstance(found, str) and found.isascii() and found.isdigit() and len(found) < 19:
            found = int(found)
        if isinstance(found, str) and (names := unfilled_in(found)):
            self.refuse(key, f"has no value for ${names[0]}; add --set {names[0]}=VALUE")
        elif isinstance(found, bool) or not isinstance(found, int) or not low <= found <= high:
            self.refuse(key, f"must be a whole number from {low} to {high}", found)
        else:
            return found
        return None

    def words(self, key: str) -> list[str]:
        """A list of texts; numbers are read as text."""
        found = self.value(key)
        if found is None:
            return []
        if not isinstance(found, list):
            self.refuse(key, "must be a list of texts", found)
            return []
        texts = [one if isinstance(one, str) else f"{one}" for one in found if _plain(one)]
        if len(texts) < len(found):
            self.refuse(key, "must be a list of texts; put true, false and numbers in quotes")
        return texts

    def mapping(self, key: str) -> dict[str, Any]:
        """A mapping, empty where there is none."""
        found = self.value(key)
        if found is not None and not isinstance(found, dict):
            self.refuse(key, "must be a mapping", found)
        return found if isinstance(found, dict) else {}

    def mapping_keys(self) -> list[str]:
        """Keys of the place with a mapping below them; others are refused."""
        return [key for key in self.data() if self.mapping(key)]

    def entries(self, key: str) -> list[ForeignReader]:
        """The entries of a list of mappings."""
        found = self.value(key)
        if found is None:
            return []
        if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
            self.refuse(key, "must be a list of mappings", found)
            return []
        return [
            ForeignReader(self.document, self.log, (*self.path, key, n)) for n in range(len(found))
        ]

    def refuse(self, key: str, text: str, value: Any = None) -> None:
        """Refuse a key of the place."""
        self.log.refuse(self.line_of(key), shown((*self.path, key)), text, value)

    def note(self, key: str, action: KeyAction, text: str) -> None:
        """Record what became of a key of the place."""
        self.log.note(self.line_of(key), shown((*self.path, key)), action, text)


def _plain(value: Any) -> bool:
    """Whether it can be read as a word of a command."""
    if isinstance(value, bool):
        return False
    return isinstance(value, str | float) or (isinstance(value, int) and abs(value) < 10**18)
