"""Root folders of images for the process kubelet: a static shell, musl, a Python without Phalanx."""

import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from phalanx.supervise.portable.build import TreeBuild
from phalanx.testing.kubernetes.image_root import ImageRoot, problem

BUSYBOX = Path("/bin/busybox")
MUSL = Path("/lib/ld-musl-x86_64.so.1")


def need_roots():
    """Skip the test where programs cannot be run in a root folder of their own."""
    if said := problem():
        pytest.skip(said)


def built_tree(folder):
    """The image that carries the supervisor tree."""
    tree = folder / "opt" / "phalanx-tree"
    tree.mkdir(parents=True)
    TreeBuild(tree).run()
    return ImageRoot(folder)


def static_shell(folder, env=None):
    """An image with nothing but a static shell."""
    if not BUSYBOX.exists() or b"statically" not in _file(BUSYBOX):
        pytest.skip("a static busybox is not installed: apt-get install busybox-static")
    binaries = folder / "bin"
    binaries.mkdir(parents=True)
    shutil.copy(BUSYBOX, binaries / "busybox")
    for name in ("sh", "sleep", "cat", "env", "ps", "kill", "mkdir"):
        (binaries / name).symlink_to("busybox")
    return ImageRoot(folder, env or {})


def _file(path):
    """What `file` says, without needing it: a static program has no interpreter."""
    return b"dynamic" if b"/lib64/ld-linux" in path.read_bytes()[:4096] else b"statically"


def with_musl(folder, source):
    """An image with the loader of musl and a program that is linked to it, beside a static shell."""
    compiler = shutil.which("musl-gcc")
    if compiler is None or not MUSL.exists():
        pytest.skip("musl is not installed: apt-get install musl musl-tools")
    image = static_shell(folder)
    (folder / "lib").mkdir()
    shutil.copy(MUSL.resolve(), folder / "lib" / MUSL.name)
    code = folder / "rank.c"
    code.write_text(source)
    subprocess.run([compiler, "-O1", "-o", folder / "bin" / "rank", code], check=True)
    return image


def with_python(folder, python, packages=()):
    """An image with a Python of this machine that has no Phalanx; `packages` are folders of modules."""
    prefix = Path(
        subprocess.check_output(
            [python, "-c", "import sys; print(sys.base_prefix)"], text=True
        ).strip()
    )
    environment = folder / "venv"
    subprocess.run([python, "-m", "venv", "--without-pip", environment], check=True)
    site = next((environment / "lib").glob("python*/site-packages"))
    (site / "more.pth").write_text("".join(f"{one}\n" for one in packages))
    system = [Path(name) for name in ("/usr", "/lib", "/lib64", "/bin")]
    shared = tuple(dict.fromkeys([*system, prefix, *map(Path, packages)]))
    for one in system:
        (folder / one.name).mkdir(exist_ok=True)
    env = {"PATH": "/venv/bin:/usr/bin:/bin"}
    return ImageRoot(folder, env, shared)


def site_packages():
    """The packages of the Python that runs the tests, torch among them; Phalanx is elsewhere."""
    return Path(sysconfig.get_path("purelib"))


def older_python():
    """A Python below 3.11, or skip."""
    names = ("python3.10", "python3.9", "python3.8")
    places = [Path(sys.base_prefix).parent, *Path("/usr/bin").glob("python3.*")]
    for name in names:
        found = shutil.which(name)
        if found and "shims" not in found:
            return found
        for one in places[0].glob(f"{name.removeprefix('python')}*/bin/{name}"):
            return str(one)
    pytest.skip("no Python below 3.11 is installed")
    return None
