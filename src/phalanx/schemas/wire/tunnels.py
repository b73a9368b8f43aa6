"""API bodies of tunnels: commands in the environment of a rank, and ports of its node."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from phalanx.core.tunnels.model import TunnelPurpose
from phalanx.schemas.api.body import RequestBody, ResponseBody

MAX_CHUNK_BYTES = 1 << 17
"""Most bytes of one transfer."""
_Word = Annotated[str, Field(max_length=1 << 17, pattern=r"^[^\x00]*$")]
_Position = Annotated[int, Field(ge=0, lt=1 << 62)]
_Base64 = Annotated[str, Field(max_length=4 * (MAX_CHUNK_BYTES // 3 + 1))]
_Size = Annotated[int, Field(ge=1, le=9999)]


class OpenTunnelRequest(RequestBody):
    """Run a command in the environment of a rank (`exec`), or reach a port of its node (`forward`)."""

    kind: Literal["exec", "forward"]
    rank: Annotated[int, Field(ge=0, lt=1 << 31)] = 0
    command: Annotated[list[_Word], Field(max_length=1000)] = Field(default_factory=list)
    tty: bool = False  # with a terminal
    rows: _Size = 24
    columns: _Size = 80
    port: Annotated[int, Field(ge=0, lt=1 << 16)] = 0

    @model_validator(mode="after")
    def _is_complete(self) -> OpenTunnelRequest:
        if self.kind == "exec" and (not self.command or not self.command[0]):
            raise ValueError("command: give the program and its arguments")
        if self.kind == "forward" and not self.port:
            raise ValueError("port: give the port of the node, from 1 to 65535")
        return self

    def to_core(self) -> TunnelPurpose:
        """As a core value."""
        return TunnelPurpose(
            kind=self.kind,
            rank=self.rank,
            command=tuple(self.command),
            tty=self.tty,
            rows=self.rows,
            columns=self.columns,
            port=self.port,
        )


class TunnelView(ResponseBody):
    """A tunnel that was opened; its supervisor joins within moments."""

    tunnel: str  # its id
    job: int
    attempt: int
    node_rank: int
    rank: int


class TunnelData(RequestBody):
    """Bytes of one direction, and the position of the first: repeated ones are passed over."""

    at: _Position
    data: _Base64 = ""  # base64
    over: bool = False  # from the node: the tunnel ends behind these bytes


class TunnelTaken(ResponseBody):
    """The position up to which bytes were taken: fewer than were sent where the reader is slower."""

    taken: int
    over: bool = False
    why: str = ""


class TunnelChunk(ResponseBody):
    """The next bytes of one direction, after those that the request has confirmed."""

    at: int  # position of the first
    data: str = ""  # base64
    over: bool = False  # nothing follows
    why: str = ""  # why it is over; empty: it ended as it should


class TunnelOrder(ResponseBody):
    """A tunnel that a supervisor is asked to join; see `core.tunnels.model.TunnelPurpose`."""

    tunnel: str
    kind: Literal["exec", "forward"]
    rank: int
    command: list[str] = Field(default_factory=list)
    tty: bool = False
    rows: int = 24
    columns: int = 80
    port: int = 0
