"""The template of a study: a process with all imports done, which forks the study's supervisors.

Started by the local executor as `python -m phalanx.supervise --template [module …]` with its channel as
standard input. Message to it: `{"op": "supervise", "assignment": path}`. From it: `{"event": "ready"}`,
`{"event": "forked", "pid"}` and `{"event": "refused", "why"}`. It ends when its channel closes.

A forked supervisor forks its reaper, and the reaper its warm process, before anything else runs; each
begins with the template's imports and nothing else. The template itself runs no job and has one thread.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import secrets
import signal
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from phalanx.launch import accept_guard, linux, reaper
from phalanx.launch.cgroup import group_name, make_group
from phalanx.launch.command import sensitive
from phalanx.launch.identity import BLANK_TAG, TAG_VARIABLE
from phalanx.launch.tree import FORK_SERVER_MODULE, ReaperProcess, WarmProcess
from phalanx.launch.wire import Channel, pair


@dataclass(frozen=True, slots=True)
class ForkedTree:
    """What a forked supervisor begins with. `data` is its assignment as JSON."""

    data: dict[str, Any]
    reaper: ReaperProcess
    warm: WarmProcess
    tag: str


def serve(
    env: Mapping[str, str],
    modules: Sequence[str],
    load_program: Callable[[], None],
    log_to: Callable[[Path], None],
) -> ForkedTree | None:
    """Fork supervisors until the channel closes; returns None then, and the tree in each supervisor."""
    channel = _take_channel()
    linux.ignore_signals_to_end()
    linux.load()
    load_program()
    # By name: a supervisor depends on nothing of training.
    fork_server = importlib.import_module(FORK_SERVER_MODULE)
    fork_server.preload(fork_server.PRELOADED)
    failed: dict[str, str] = fork_server.make_forkable(modules)
    wakeup = linux.wakeup_on_child_exit()
    channel.send({"event": "ready"})
    path = _next(channel, wakeup)
    if path is None:
        return None
    data, tag = _begin(path, log_to)
    return _fork_tree(data, tag, sensitive(accept_guard.not_preloaded(env)), failed)


def _take_channel() -> Channel:
    channel = Channel(socket.socket(fileno=os.dup(0)))
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    os.close(empty)
    return channel


def _next(channel: Channel, wakeup: int) -> Path | None:
    """Handle messages. Returns None at the end, and in each child the path of its assignment."""

    def reap() -> None:
        for _ in linux.reaped():
            pass

    while True:
        message = channel.receive_beside(wakeup, reap)
        if message is None:
            return None
        if (running := linux.num_threads()) != 1:
            channel.send({"event": "refused", "why": f"the template has {running} threads"})
            continue
        pid = os.fork()
        if pid == 0:
            channel.detach()
            return Path(message.body["assignment"])
        channel.send({"event": "forked", "pid": pid})


def _begin(path: Path, log_to: Callable[[Path], None]) -> tuple[dict[str, Any], str]:
    """Make this fork what a supervisor that was started as a program is; returns assignment and tag."""
    os.setsid()
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    linux.close_all_but(())
    data: dict[str, Any] = json.loads(path.read_bytes())
    os.chdir(data["node_dir"])
    log_to(Path(data["node_dir"]))
    tag = secrets.token_hex(len(BLANK_TAG) // 2)
    linux.replace_environment(TAG_VARIABLE, tag)
    linux.become_subreaper()
    return data, tag


def _fork_tree(
    data: dict[str, Any], tag: str, variables: Mapping[str, str], failed: Mapping[str, str]
) -> ForkedTree:
    """Fork the reaper, and below it the warm process; neither returns."""
    reaper_end, reaper_channel = pair()
    warm_end, warm_channel = pair()
    supervisor = os.getpid()
    pid = os.fork()
    if pid:
        reaper_channel.close()
        warm_channel.close()
        warm = WarmProcess(warm_end, 0, sys.executable, variables)
        return ForkedTree(data, ReaperProcess(pid, reaper_end), warm, tag)
    os.setsid()
    group = make_group(group_name(os.getpid()))
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        group.join()
        _be_warm(warm_channel, parent, failed)
    try:
        os.chdir("/")
        linux.close_all_but([reaper_channel.fileno()])
        if os.getppid() == supervisor:
            reaper.serve(Channel(reaper_channel), group, child)
    finally:
        os._exit(0)


def _be_warm(sock: socket.socket, parent: int, failed: Mapping[str, str]) -> None:
    """Fork ranks as a warm process; a rank ends here as a program does."""
    linux.die_with_parent(parent)
    os.setsid()
    linux.close_all_but([sock.fileno()])
    linux.ignore_signals_to_end()
    channel = Channel(sock)
    with contextlib.suppress(OSError):
        channel.send({"event": "ready", "failed": dict(failed)})
    sys.modules[FORK_SERVER_MODULE].run(channel)
