"""`python -m phalanx.standalone --home H [--port P] [--slots S] [--detached] [--idle-exit-s 60]`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from phalanx.errors import PlatformError
from phalanx.kit.terminal import guard_terminal


def _parser() -> argparse.ArgumentParser:
    """Its options have the names of the fields of `ControlPlaneOptions`."""
    parser = argparse.ArgumentParser(prog="phalanx.standalone", description=__doc__)
    parser.add_argument("--home", dest="root", metavar="HOME", required=True, type=Path)
    parser.add_argument("--port", type=int, default=0, help="default: any free one")
    parser.add_argument(
        "--slots",
        dest="num_slots",
        metavar="SLOTS",
        type=int,
        help="default: the accelerators of this machine, else max(4, cores)",
    )
    parser.add_argument(
        "--detached", action="store_true", help="started by a verb, not by a person"
    )
    parser.add_argument("--idle-exit-s", type=float, default=None, help="default: stay for ever")
    parser.add_argument("--grpc-port", type=int, help="default: the settings', else no gRPC API")
    parser.add_argument("--log-format", choices=("text", "json"), help="default: the settings'")
    parser.add_argument("--host", default="127.0.0.1", help="interface; default: loopback")
    parser.add_argument("--advertise", default=None, help="URL for other machines")
    parser.add_argument("--tls", choices=("generate",), help="make certificates in the home")
    parser.add_argument("--tls-cert", type=Path, help="certificate in PEM, with its chain")
    parser.add_argument("--tls-key", type=Path, help="its key")
    parser.add_argument("--tls-ca", type=Path, help="authority that supervisors accept")
    parser.add_argument("--plain-http", action="store_true", help="no TLS for other machines")
    parser.add_argument(
        "--pool",
        dest="pools",
        metavar="POOL",
        action="append",
        default=[],
        type=Path,
        help="pool file",
    )
    parser.add_argument("--database-url", default=None, help="PostgreSQL; default: the settings'")
    parser.add_argument("--keep-logs-s", type=float, default=None, help="default: the settings'")
    parser.add_argument("--keep-metrics-s", type=float, default=None)
    parser.add_argument("--keep-warm", type=int, default=0, choices=(0, 1))
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run until told to stop. Exit code 0 after a clean end, 1 when it could not start."""
    guard_terminal()  # the log quotes requests
    options = vars(_parser().parse_args(argv))
    try:
        from phalanx.standalone.control_plane import ControlPlaneOptions, run

        return run(ControlPlaneOptions(**options))
    except PlatformError as error:
        hint = f"\n  {error.hint}" if error.hint else ""
        print(f"phalanx: {error.message}{hint}", file=sys.stderr, flush=True)  # noqa: T201
        return error.exit_code
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
