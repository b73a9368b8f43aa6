"""The sampler process: reads requests as JSON lines, writes one answer for each.

It ends with its standard input. `worker.SamplerWorker` is the other side.
"""

from __future__ import annotations

import json
import sys

from phalanx.core.codec import decode, encode
from phalanx.core.search.sampling import SampleRequest
from phalanx.search.methods import propose_here
from phalanx.search.worker import MAX_BYTES


def main() -> int:
    """Answer until the input ends."""
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    sys.stdout = sys.stderr  # what a plugin prints is no answer
    while line := source.readline(MAX_BYTES + 1):
        if len(line) > MAX_BYTES:
            return 1
        try:
            made = propose_here(decode(SampleRequest, json.loads(line)))
            answer = {"suggestion": None if made is None else encode(made)}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"[:500]}
        sink.write(json.dumps(answer).encode() + b"\n")
        sink.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
