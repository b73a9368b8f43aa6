#!/usr/bin/env bash
# Horovod for PyTorch over gloo. Its wheel is built once (minutes) and kept outside of the checkout.
#   scripts/horovod.sh wheel [PYTHON]         print the wheel's path; build it if it is not there
#   scripts/horovod.sh install [PYTHON]       the same, and install it
#   scripts/horovod.sh install-kept [PYTHON]  install it if it is there; else say what to do
# It is kept in $PHALANX_WHEELS, else ~/.cache/phalanx-wheels, below a name that says what it was built for.
# Building needs cmake and a C++ compiler (on Debian and Ubuntu: apt-get install cmake g++).
set -eu
verb="${1:?wheel, install or install-kept}"
python="${2:-$(dirname "$0")/../.venv/bin/python}"
constraints="$(dirname "$0")/../constraints.txt"
version=0.28.1
built_for="$("$python" -c 'import sys, torch; print("py%d%d-torch%s" % (*sys.version_info[:2], torch.__version__))')"
folder="${PHALANX_WHEELS:-$HOME/.cache/phalanx-wheels}/horovod-$version-$built_for"

kept() { find "$folder" -name 'horovod-*.whl' 2>/dev/null | head -n 1; }

build() {
  for tool in cmake c++; do
    command -v "$tool" >/dev/null || { echo "$tool is missing: apt-get install cmake g++" >&2; exit 1; }
  done
  scratch="$(mktemp -d)"
  trap 'rm -rf "$scratch"' EXIT
  # Horovod asks for C++14, the headers of this torch need C++17: the last option wins.
  printf '#!/bin/sh\nexec c++ "$@" -std=gnu++17\n' > "$scratch/c++17"
  chmod +x "$scratch/c++17"
  echo "building Horovod $version: this takes some minutes" >&2
  CXX="$scratch/c++17" MAKEFLAGS="${MAKEFLAGS:--j$(nproc)}" HOROVOD_WITH_PYTORCH=1 HOROVOD_WITH_GLOO=1 \
    HOROVOD_CPU_OPERATIONS=GLOO HOROVOD_WITHOUT_MPI=1 HOROVOD_WITHOUT_TENSORFLOW=1 HOROVOD_WITHOUT_MXNET=1 \
    "$python" -m pip wheel --quiet --disable-pip-version-check --no-build-isolation --no-deps --no-cache-dir \
    --no-binary horovod --wheel-dir "$scratch/wheel" "horovod==$version" >&2
  mkdir -p "$folder"
  cp "$scratch"/wheel/horovod-*.whl "$folder/"
}

install() {
  "$python" -m pip install --quiet --disable-pip-version-check -c "$constraints" cffi cloudpickle packaging psutil pyyaml
  "$python" -m pip install --quiet --disable-pip-version-check --no-deps "$1"
}

case "$verb" in
  wheel) [ -n "$(kept)" ] || build; kept ;;
  install) [ -n "$(kept)" ] || build; install "$(kept)" ;;
  install-kept)
    if [ -n "$(kept)" ]; then install "$(kept)"
    else echo "Horovod is not installed; its tests skip until \`make horovod\` has built it once"
    fi ;;
  *) echo "wheel, install or install-kept, not $verb" >&2; exit 1 ;;
esac
