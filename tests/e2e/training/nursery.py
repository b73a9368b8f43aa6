"""A process that has imported torch and forks ranks: the tests' own cheap launcher.

Reads one JSON object per line: {"do": "spawn", "env": …, "argv": …, "out": path} answers {"pid": …};
{"do": "poll"} answers {"ended": {pid: status}}; {"do": "leave"} answers nothing. Runs no tensor
operation, or its children would hang.
"""

import atexit
import contextlib
import ctypes
import json
import os
import runpy
import signal
import sys

import sklearn.datasets  # noqa: F401
import torch
import torch._dynamo
import torch.distributed.fsdp
import torch.distributed.tensor
import torch.utils.data

import phalanx.train.start
import phalanx.train.step.engine  # noqa: F401

PR_SET_PDEATHSIG = 1
CLONE_NEWNS, MS_REC, MS_PRIVATE, MS_BIND = 0x20000, 0x4000, 1 << 18, 0x1000


def mount_own(source, target):
    """See `source` at `target`, in a mount namespace of this process."""
    libc = ctypes.CDLL(None, use_errno=True)
    for call, words in (
        (libc.unshare, (CLONE_NEWNS,)),
        (libc.mount, (b"none", b"/", None, MS_REC | MS_PRIVATE, None)),
        (libc.mount, (source.encode(), target.encode(), None, MS_BIND, None)),
    ):
        if call(*words):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), target)


def become_rank(order):
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    os.setsid()
    out = os.open(order["out"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(out, 1)
    os.dup2(out, 2)
    os.environ.update(order["env"])
    if order.get("bind"):
        mount_own(*order["bind"])
    torch.set_num_threads(int(order["env"].get("OMP_NUM_THREADS", "1")))
    sys.argv[:] = order["argv"]
    sys.path.insert(0, os.path.dirname(order["argv"][0]))
    code = 0
    try:
        runpy.run_path(order["argv"][0], run_name="__main__")
    except SystemExit as leaving:
        code = leaving.code or 0
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        code = 1
    # Taking torch apart at the interpreter's end costs a second a process: leave without it.
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def main():
    print(json.dumps({"ready": os.getpid()}), flush=True)
    children = set()
    for line in iter(sys.stdin.readline, ""):
        order = json.loads(line)
        if order["do"] == "leave":
            break
        if order["do"] == "spawn":
            pid = os.fork()
            if pid == 0:
                become_rank(order)
            children.add(pid)
            answer = {"pid": pid}
        else:
            ended = {}
            for pid in sorted(children):
                done, status = os.waitpid(pid, os.WNOHANG)
                if done:
                    ended[pid] = os.waitstatus_to_exitcode(status)
            children -= set(ended)
            answer = {"ended": ended}
        print(json.dumps(answer), flush=True)
    for pid in children:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    os._exit(0)  # as ranks do


if __name__ == "__main__":
    main()
