"""A fake driver of NVIDIA: a real shared library behind the real bindings, with devices from a file."""

import ctypes
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[1] / "fixtures" / "fake_nvml.c"
NAME = "libnvidia-ml.so.1"
GB = 10**9
_GCC = f"gcc -shared -fPIC -Wall -Werror -O1 -Wl,-soname,{NAME} -o"
H100 = "NVIDIA H100 80GB HBM3"
LOST = 15


@dataclass
class FakeDevice:
    uuid: str
    name: str = H100
    total: int = 80 * GB
    free: int = 80 * GB
    links: int = 18
    error: int = 0
    users: dict[int, int] = field(default_factory=dict)
    instances: list[tuple[str, str]] = field(default_factory=list)  # (uuid, profile)

    def lines(self):
        users = ",".join(f"{pid}:{used}" for pid, used in self.users.items()) or "-"
        words = (self.name, self.uuid, self.total, self.free, self.links, self.error, users)
        yield "\t".join(map(str, words))
        for uuid, profile in self.instances:
            yield f"^\t{uuid}\t{10 * GB}\t{10 * GB}\t{self.name} MIG {profile}"


class FakeDriver:
    """The library, compiled once for a test session, and the file with the devices of one test.

    A new process finds it through `LD_LIBRARY_PATH`, as it finds the real one; this process finds it by
    the name inside the library once `load` has opened it.
    """

    def __init__(self, folder: Path, state: Path):
        self.folder, self.state = folder, state
        self._last: str | None = None
        library = folder / NAME
        if not library.exists():
            folder.mkdir(parents=True, exist_ok=True)
            subprocess.run(
                [*_GCC.split(), f"{library}.new", str(SOURCE)],
                check=True,
            )
            Path(f"{library}.new").rename(library)
        self.devices: list[FakeDevice] = []
        self.write()

    def have(self, *devices: FakeDevice):
        self.devices = list(devices)
        self.write()

    def have_h100(self, num: int):
        self.have(*(FakeDevice(f"GPU-{i:08x}-h100") for i in range(num)))

    def fail(self, code: int):
        self._put(f"!{code}\n")

    def write(self):
        self._put("".join(f"{line}\n" for one in self.devices for line in one.lines()))

    def _put(self, text: str):
        if text == self._last:
            return
        self._last = text
        fresh = self.state.with_suffix(".new")
        fresh.write_text(text)
        fresh.replace(self.state)

    @property
    def env(self):
        return {"LD_LIBRARY_PATH": str(self.folder), "FAKE_NVML_STATE": str(self.state)}

    def load(self, monkeypatch):
        monkeypatch.setenv("FAKE_NVML_STATE", str(self.state))
        ctypes.CDLL(str(self.folder / NAME))


def fake_driver(tmp_path_factory, tmp_path) -> FakeDriver:
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if base.name.startswith("popen-") else base
    return FakeDriver(shared / "fake-nvml", tmp_path / "nvml.txt")
