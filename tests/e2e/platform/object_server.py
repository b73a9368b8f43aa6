"""A real S3 server on loopback."""

import shutil
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from e2e.platform.harness import wait_for
from phalanx.kit.text import random_hex

RCLONE = shutil.which("rclone", path=str(Path(sys.executable).parent)) or shutil.which("rclone")
# Made up anew each time, so that no source file holds what a test looks for.
KEY, SECRET = "testkey", random_hex(32)


@contextmanager
def object_server(root: Path) -> Iterator[str]:
    """Serves the folders in `root` as buckets; gives the endpoint's URL."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    assert RCLONE is not None
    child = subprocess.Popen(
        [RCLONE, "serve", "s3", "--addr", address, "--config", "/dev/null",
         "--auth-key", f"{KEY},{SECRET}", "--vfs-cache-mode", "off", "--dir-cache-time", "1ms",
         str(root)],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        wait_for("the S3 server", lambda: child.poll() is not None or _answers(address))
        yield f"http://{address}"
    finally:
        child.kill()
        child.wait(10)


def _answers(address: str) -> bool:
    try:
        urllib.request.urlopen(f"http://{address}/", timeout=5).close()
    except urllib.error.HTTPError as error:
        error.close()
        return True
    except OSError:
        return False
    return True
