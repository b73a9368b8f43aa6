"""The containers of one pod as local processes: folders, init containers, sidecars, the main container."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from phalanx.launch import linux
from phalanx.testing.kubernetes.image_root import ImageRoot

ADDRESS = "127.0.0.1"
Object = dict[str, Any]


class PodProcesses:
    """A pod that runs, with the files that its containers see.

    `process` is the main container's; None while init containers run, and where one of them failed.
    """

    def __init__(
        self,
        pod: Object,
        root: Path,
        secrets: Mapping[str, Mapping[str, bytes]],
        images: Mapping[str, ImageRoot],
    ) -> None:
        """`images`: those that have a root folder; containers of others see this machine."""
        self.root = root
        self._images = images
        self.node: str = pod["spec"]["nodeName"]
        self.namespace: str = pod["metadata"]["namespace"]
        self.name: str = pod["metadata"]["name"]
        self.process: subprocess.Popen[bytes] | None = None
        self.stop_at: float | None = None  # when it is killed; None: it was not asked to end
        self.reported = False
        self.evicted = False  # its node ends it, and says why
        self.spec: Object = pod["spec"]
        self._seen = self._folders(secrets)
        self._queue: list[Object] = [*self.spec.get("initContainers", ())]
        self._init: subprocess.Popen[bytes] | None = None  # the init container that runs now
        self._sidecars: dict[str, subprocess.Popen[bytes]] = {}
        self._ended: dict[str, int] = {}  # exit codes of init containers

    # -- life --------------------------------------------------------------------------------------

    def advance(self) -> bool:
        """Start the next container where the one before has done its part; whether something changed."""
        if self.process is not None or self.failed_init is not None:
            return False
        if self._init is not None:
            code = self._init.poll()
            if code is None:
                return False
            self._ended[self._queue.pop(0)["name"]] = code if code >= 0 else 128 - code
            self._init = None
            return True
        if not self._queue:
            self.process = self._start(self.spec["containers"][0])
        elif self._queue[0].get("restartPolicy") == "Always":
            one = self._queue.pop(0)
            self._sidecars[one["name"]] = self._start(one)
        else:
            self._init = self._start(self._queue[0])
        return True

    @property
    def failed_init(self) -> str | None:
        """The init container that failed; the others are never started then."""
        return next((name for name, code in self._ended.items() if code), None)

    @property
    def exit_code(self) -> int | None:
        """The exit code of the pod as its kubelet tells it; None: it runs."""
        if self.failed_init is not None:
            return self._ended[self.failed_init]
        code = None if self.process is None else self.process.poll()
        return code if code is None or code >= 0 else 128 - code

    @property
    def is_alive(self) -> bool:
        """Whether the main container runs."""
        return self.process is not None and self.process.poll() is None

    def terminate(self) -> None:
        """Ask the main container to end, or the init container that runs."""
        one = self.process or self._init
        if one is not None:
            with contextlib.suppress(ProcessLookupError):
                one.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill everything."""
        for one in (self.process, self._init, *self._sidecars.values()):
            if one is not None:
                kill_below(one)

    def end_sidecars(self) -> None:
        """End the sidecars, as a kubelet does after the main container."""
        for one in self._sidecars.values():
            kill_below(one)
            one.wait()

    def wait(self) -> None:
        """Wait for the end of everything that was killed."""
        for one in (self.process, self._init, *self._sidecars.values()):
            if one is not None:
                one.wait()

    # -- what the kubelet tells --------------------------------------------------------------------

    def init_statuses(self) -> list[Object]:
        """The statuses of init containers, sidecars among them."""
        found = []
        for one in self.spec.get("initContainers", ()):
            name = one["name"]
            state: Object = {"waiting": {"reason": "PodInitializing"}}
            if name in self._ended:
                state = {"terminated": {"exitCode": self._ended[name], "reason": "Completed"}}
            elif name in self._sidecars:
                code = self._sidecars[name].poll()
                state = {"running": {}} if code is None else {"terminated": {"exitCode": code}}
            elif self._init is not None and self._queue[0]["name"] == name:
                state = {"running": {}}
            found.append({"name": name, "image": one["image"], "state": state})
        return found

    # -- inside ------------------------------------------------------------------------------------

    def _start(self, container: Object) -> subprocess.Popen[bytes]:
        image = self._images.get(container["image"])
        if image is not None:
            env = {
                entry["name"]: ADDRESS if "valueFrom" in entry else str(entry["value"])
                for entry in container.get("env") or ()
            }
            words = [*container.get("command", ()), *(container.get("args") or ())]
            with open(self.root / "log", "ab") as log:
                return image.start(words, env, self._seen, log.fileno())
        env = {"PATH": f"{Path(sys.executable).parent}:{os.defpath}", "HOME": str(self.root)}
        for entry in container.get("env") or ():
            env[entry["name"]] = (
                ADDRESS if "valueFrom" in entry else self._inside(str(entry["value"]))
            )
        words = [*container.get("command", ()), *(container.get("args") or ())]
        argv = [self._inside(one) for one in words]
        with open(self.root / "log", "ab") as log:
            return subprocess.Popen(
                [shutil.which(argv[0], path=env["PATH"]) or argv[0], *argv[1:]],
                env=env,
                cwd=self.root,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _inside(self, text: str) -> str:
        """A path as the container sees it: its file system is a folder here."""
        below = [one for one in self._seen if text == one or text.startswith(f"{one}/")]
        return str(self._seen[below[0]]) + text[len(below[0]) :] if below else text

    def _folders(self, secrets: Mapping[str, Mapping[str, bytes]]) -> dict[str, Path]:
        """The folders and files that the containers see, by their path there."""
        root = self.root
        root.mkdir(parents=True, mode=0o700)
        (root / "tmp").mkdir(mode=0o700)
        (root / "termination-log").touch()
        seen = {"/tmp": root / "tmp", "/dev/termination-log": root / "termination-log"}
        for mount in self.spec["containers"][0].get("volumeMounts") or ():
            folder = root / "volumes" / mount["name"]
            folder.mkdir(parents=True, exist_ok=True)
            for name, data in secrets.get(mount["name"], {}).items():
                (folder / name).write_bytes(data)
            seen[mount["mountPath"]] = folder
        return seen


def kill_below(process: subprocess.Popen[bytes]) -> None:
    """Kill a container's first process and everything below, as the end of a PID namespace does."""
    with contextlib.suppress(ProcessLookupError):
        # Stopped first: it must not notice that the others end.
        process.send_signal(signal.SIGSTOP)
        linux.kill_below(process.pid, frozenset(), lambda: None)
        process.kill()
