"""The warm process: imports torch once and forks ranks.

Started as `<the job's python> -m phalanx.train.warm_process.fork_server [module …]` with the job's
environment and the supervisor's channel as descriptor 3. Messages to it: `{"op": "import", "modules"}`
and `{"op": "fork", "env", "argv", "orig_argv", "kind", "target", "cwd", "workdir"}` with descriptors
for 0, 1 and 2. From it: `{"event": "ready", "failed": {…}}`, `{"event": "forked", "pid"}` or `{"event":
"refused", "why"}`, and `{"event": "exited", "pid", "status", "at"}`.

It runs no tensor operation and starts no thread, because threads do not survive a fork and their locks do.
"""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import gc
import importlib
import os
import random
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from phalanx.launch import linux
from phalanx.launch.wire import Channel, WireMessage
from phalanx.train.gang import stacks
from phalanx.train.warm_process import leaving, main_module

CHANNEL = 3
# What a first optimizer step imports lazily. DDP's import of _dynamo alone is most of the time from
# fork to first step.
PRELOADED = (
    "torch",
    "torch._dynamo",
    "torch.distributed",
    "torch.nn.parallel",
    "phalanx.train.start",
)


@dataclass(frozen=True, slots=True)
class ForkRequest:
    """The program that a forked child runs."""

    body: dict[str, Any]
    descriptors: tuple[int, ...]


def main(modules: Sequence[str]) -> None:
    """Serve until the supervisor ends; in a forked child, be a rank until its script has ended."""
    linux.ignore_signals_to_end()
    linux.load()
    channel = Channel(socket.socket(fileno=CHANNEL))
    # Where there is no torch, or an older one, the script itself will say so.
    preload(PRELOADED)
    warm_up(channel, modules)
    run(channel)


def run(channel: Channel) -> NoReturn:
    """Serve until the supervisor ends; in a forked child, be a rank until its script has ended."""
    start = serve(channel)
    if start is None:
        os._exit(0)  # nothing here needs an orderly end
    before = frozenset(sys.modules)
    code: object = None
    try:
        become_rank(start)
    except SystemExit as end:
        code = end.code
    leaving.leave(code, before)


def warm_up(channel: Channel, modules: Sequence[str]) -> None:
    """Import modules and prepare to fork: no threads, and no collector that writes to shared pages."""
    failed = make_forkable(modules)
    with contextlib.suppress(OSError):
        channel.send({"event": "ready", "failed": failed})


def make_forkable(modules: Sequence[str]) -> dict[str, str]:
    """Import modules, end threads and freeze the collector; returns the failed modules with the reason."""
    failed = preload(modules)
    settle_threads()
    gc.collect()
    gc.freeze()
    return failed


def preload(modules: Sequence[str]) -> dict[str, str]:
    """Import modules by name; returns the failed ones with the reason."""
    failed: dict[str, str] = {}
    with _without_allocator_threads():
        for name in modules:
            try:
                importlib.import_module(name)
            except Exception as error:
                failed[name] = f"{type(error).__name__}: {error}"
    return failed


@contextlib.contextmanager
def _without_allocator_threads() -> Iterator[None]:
    """Keep the allocator of Arrow, which pandas and scikit-learn load, from starting a thread for good."""
    name, environ = "JE_ARROW_MALLOC_CONF", os.environ  # noqa: TID251 - of this program
    if name in environ:
        yield
        return
    environ[name] = "background_thread:false"
    try:
        yield
    finally:
        environ.pop(name, None)


def settle_threads() -> None:
    """Make fork-aware libraries stop the threads that they started at import.

    OpenBLAS stops its own before every fork and starts them again on demand; one empty fork leaves
    only those threads that a fork would really lose.
    """
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)


def serve(channel: Channel) -> ForkRequest | None:
    """Handle messages. Returns None at the end, and in each child the request to run."""
    wakeup = linux.wakeup_on_child_exit()
    while True:
        message = channel.receive_beside(wakeup, lambda: _reap(channel))
        if message is None:
            return None
        if message.body["op"] == "import":
            warm_up(channel, message.body["modules"])
        elif (start := _fork(channel, message)) is not None:
            return start


def _reap(channel: Channel) -> None:
    for pid, status in linux.reaped():
        at = time.time_ns() // 1000
        with contextlib.suppress(OSError):
            channel.send({"event": "exited", "pid": pid, "status": status, "at": at})


def _fork(channel: Channel, message: WireMessage) -> ForkRequest | None:
    """Fork one rank. Returns the request in the child, None in the parent."""
    running = linux.num_threads()
    if running != 1:
        why = f"the warm process has {running} threads"
        channel.send({"event": "refused", "why": why})
        for descriptor in message.descriptors:
            os.close(descriptor)
        return None
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        linux.die_with_parent(parent)
        channel.detach()  # the number will be used by others: no object may close it later
        return ForkRequest(message.body, message.descriptors)
    for descriptor in message.descriptors:
        os.close(descriptor)
    channel.send({"event": "forked", "pid": pid})
    return None


def become_rank(start: ForkRequest) -> None:
    """Reset this forked child to the state of a fresh interpreter, and run its program."""
    body = start.body
    os.setsid()
    _take_descriptors(start.descriptors)
    _reset_signals()
    _take_environment(body["env"])
    os.chdir(body["cwd"])
    _forget(body["cwd"])
    faulthandler.enable()
    report_file = body["env"].get("PHALANX_REPORT_FILE")
    stacks.install_handler(Path(report_file) if report_file else None)
    _keep_contexts_out_of_operations()
    sys.argv[:] = body["argv"]
    sys.orig_argv[:] = body["orig_argv"]
    if body["kind"] == "script":
        main_module.run_script(body["target"])
    else:
        main_module.run_module(body["target"], body["workdir"])


def _take_environment(env: dict[str, str]) -> None:
    # What the interpreter itself set when it started in the C locale, it would set again.
    coerced = os.environ.get("LC_CTYPE")  # noqa: TID251 - the rank's entry point
    os.environ.clear()  # noqa: TID251
    os.environ.update(env)  # noqa: TID251
    if coerced is not None:
        os.environ.setdefault("LC_CTYPE", coerced)  # noqa: TID251
    time.tzset()


def _take_descriptors(descriptors: Sequence[int]) -> None:
    for target, source in enumerate(descriptors):
        os.dup2(source, target)
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2:
            with contextlib.suppress(OSError):
                os.close(int(name))


def _reset_signals() -> None:
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def _keep_contexts_out_of_operations() -> None:
    """Do without the context variables that torch attaches to the operations of a backward pass.

    An operation of gloo keeps them, and the thread that ran it needs the lock of the interpreter to free
    them. The destructor of a process group holds this lock while it joins the thread: a script that ends
    right after its last step may wait for ever, and a forked rank is quick enough for that. Only compiled
    functions read these variables, and do without them where they are absent.
    """
    functions = sys.modules.get("torch._C")
    for name in ("_stash_obj_in_tls", "_remove_obj_from_tls"):
        of_torch = getattr(functions, name, None)
        if of_torch is not None:
            vars(functions)[name] = functools.partial(_unless_context, of_torch)


def _unless_context(function: Callable[..., None], key: str, *values: object) -> None:
    if key != "context":
        function(key, *values)


def _forget(cwd: str) -> None:
    """Draw anew what a fresh process would not share with its parent."""
    random.seed()
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()
    process = sys.modules.get("multiprocessing.process")
    if process is not None:
        vars(process)["ORIGINAL_DIR"] = cwd
        process.current_process().authkey = os.urandom(32)


if __name__ == "__main__":
    # By name, so that clearing `__main__` takes nothing away from the code that runs.
    from phalanx.train.warm_process import fork_server

    fork_server.main(sys.argv[1:])
