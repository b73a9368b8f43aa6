#!/usr/bin/env bash
# Writes requirements/*.txt: every package with its version, as constraints.txt pins it, and the digests of its files.
# `scripts/lock.sh UV` takes the program uv; versions that constraints.txt does not name stay as they were.
set -eu
cd "$(dirname "$0")/.."
uv="$1"

lock() {
  name="$1"
  shift
  extras=""
  for extra in "$@"; do extras="$extras --extra $extra"; done
  # shellcheck disable=SC2086  # one word per option
  "$uv" pip compile pyproject.toml $extras --constraints constraints.txt --output-file "requirements/$name.txt" \
    --generate-hashes --universal --python-version 3.11 --no-annotate --no-header --no-emit-index-url --quiet
}

lock server server search data crypto zstd grpc
lock train server search data crypto zstd grpc train
lock ray server search data crypto zstd grpc train ray
"$uv" pip compile --group release --output-file requirements/release.txt \
  --generate-hashes --universal --python-version 3.11 --no-annotate --no-header --no-emit-index-url --quiet
