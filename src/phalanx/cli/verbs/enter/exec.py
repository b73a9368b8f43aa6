"""`phalanx exec`: run a command in the environment of a rank, as if on its node."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import sys
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from phalanx.cli.client.session import connected, job_number
from phalanx.cli.terminal.options import JobName
from phalanx.core.tunnels.frames import FrameKind, TunnelFrame, frames_of, resize
from phalanx.errors import UserError

if TYPE_CHECKING:
    from phalanx.sdk.tunnels import ClientTunnel

_READ_BYTES = 1 << 15
_LOOK_S = 0.2

Rank = Annotated[int, typer.Option("--rank", min=0, help="The rank, or the rank of the node.")]


def exec_(
    ctx: typer.Context,
    job: JobName,
    command: Annotated[
        list[str], typer.Argument(metavar="-- COMMAND...", help="The program and its arguments.")
    ],
    rank: Rank = 0,
    tty: Annotated[
        bool, typer.Option("--tty", "-t", help="With a terminal, as for a shell.")
    ] = False,
) -> None:
    """Run a command in the environment and the folder of a rank, beside it on its node.

    Input is passed on; the exit code is that of the command. It ends with the ranks.
    """
    from phalanx.schemas.wire.tunnels import OpenTunnelRequest

    if tty and not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UserError("--tty needs a terminal for input and output", "leave it out in a script")
    columns, rows = shutil.get_terminal_size()
    wanted = OpenTunnelRequest(
        kind="exec", rank=rank, command=command, tty=tty, rows=max(1, rows), columns=max(1, columns)
    )
    with (
        connected(ctx) as client,
        client.tunnels.connect(job_number(job), wanted) as tunnel,
        _raw_terminal() if tty else contextlib.nullcontext(),
    ):
        code = _run(tunnel, tty=tty)
    raise typer.Exit(code)


def _run(tunnel: ClientTunnel, *, tty: bool) -> int:
    """Pass input and output until the command ends; returns its exit code."""
    interrupted: list[int] = []

    def interrupt(number: int, _: object) -> None:
        interrupted.append(number)
        _thread(tunnel.close)

    if tty:
        signal.signal(signal.SIGWINCH, lambda *_: _thread(_send_size, tunnel))
    else:
        signal.signal(signal.SIGINT, interrupt)
    _thread(_pass_input, tunnel)
    code: int | None = None
    for frame in tunnel.frames():
        if frame.kind is FrameKind.OUTPUT:
            _write(sys.stdout.fileno(), frame.data)
        elif frame.kind is FrameKind.ERRORS:
            _write(sys.stderr.fileno(), frame.data)
        elif frame.kind is FrameKind.EXITED:
            code = frame.number
        elif frame.kind is FrameKind.REFUSED:
            raise UserError(f"the command was not started: {frame.text}")
    if interrupted:
        return 128 + interrupted[0]
    if code is None:
        raise UserError(
            f"the command did not end by itself: {tunnel.why or 'the tunnel was closed'}"
        )
    return code


def _pass_input(tunnel: ClientTunnel) -> None:
    """Send what is typed or piped, until its end."""
    descriptor = sys.stdin.fileno()
    while not tunnel.is_over:
        if not select.select([descriptor], [], [], _LOOK_S)[0]:
            continue
        data = os.read(descriptor, _READ_BYTES)
        if not data:
            tunnel.send(TunnelFrame(FrameKind.CLOSE))
            return
        tunnel.send(*frames_of(FrameKind.INPUT, 0, data))


def _send_size(tunnel: ClientTunnel) -> None:
    columns, rows = shutil.get_terminal_size()
    tunnel.send(resize(rows, columns))


def _write(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


@contextlib.contextmanager
def _raw_terminal() -> Iterator[None]:
    """Pass every key on, as it is; the terminal is as before afterwards."""
    import termios
    import tty

    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    tty.setraw(descriptor, termios.TCSADRAIN)  # what was typed before is not thrown away
    try:
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def _thread(work: object, *args: object) -> None:
    threading.Thread(target=work, args=args, daemon=True).start()  # type: ignore[arg-type]
