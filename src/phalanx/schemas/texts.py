"""Text that users' processes have made up, on its way into messages."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator

from phalanx.kit.text import sayable

Said = Annotated[str, AfterValidator(sayable)]
"""What cannot be sent or stored is replaced: a report that cannot be sent would be tried for ever."""
