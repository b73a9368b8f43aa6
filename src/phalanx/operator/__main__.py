"""`python -m phalanx.operator`: serve objects of a Kubernetes cluster as jobs of a control plane.

Exit code 1 with one line for a bad option, and while a training-operator serves the same objects.
"""

from __future__ import annotations

import argparse
import logging
import os
import re
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from phalanx.core.contract.secrecy import redacted
from phalanx.errors import PlatformError, ServerError, UserError
from phalanx.kit.log_lines import LogFormat, log_to
from phalanx.kit.terminal import guard_terminal

if TYPE_CHECKING:
    from phalanx.operator.cluster import WatchScope

_MOST_WORKERS = 64
_NAMESPACE = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_WORD = r"[A-Za-z0-9]([A-Za-z0-9_./-]{0,315}[A-Za-z0-9])?"
_TERM = rf"(!{_WORD}|{_WORD}(!?==?({_WORD})?)?)"
_SELECTOR = re.compile(rf"{_TERM}(,{_TERM})*")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="phalanx operator",
        description="Serve the PyTorchJobs of a Kubernetes cluster as jobs of a control plane, in "
        "namespaces with the label phalanx.dev/serve=pytorchjob; there, and with the value managed, also "
        "JobSets and Jobs with managedBy: phalanx.dev/executor.",
        epilog="The control plane is that of --url, --token and --ca-file before the verb, or of "
        "PHALANX_URL, PHALANX_TOKEN and PHALANX_CA_FILE. Its token needs the scope submit.",
    )
    parser.add_argument(
        "--kubeconfig", type=Path, help="credentials; default: the pod's service account"
    )
    parser.add_argument("--context", help="its context; default: the current one")
    parser.add_argument(
        "--pool", default="", help="pool of the jobs, that of this cluster; default: any that fits"
    )
    parser.add_argument(
        "--cluster",
        default="",
        help="name of the cluster, never changed; default: the uid of its namespace kube-system",
    )
    parser.add_argument(
        "--namespace",
        action="append",
        default=[],
        metavar="NAME",
        help="list and watch objects of this namespace only; may be repeated; default: all",
    )
    parser.add_argument(
        "--selector",
        default="",
        metavar="LABELS",
        help="list and watch objects with these labels only, such as team=vision,stage!=test",
    )
    parser.add_argument(
        "--workers", type=int, default=4, help="objects that are looked at side by side"
    )
    parser.add_argument(
        "--metrics-port", type=int, default=0, help="port of the metrics; default: none"
    )
    parser.add_argument("--metrics-host", default="127.0.0.1", help="address of the metrics")
    parser.add_argument(
        "--log-format",
        choices=("text", "json"),
        default="text",
        help="log lines: text, or one JSON object each",
    )
    return parser


def main(argv: Sequence[str] | None = None, env: Mapping[str, str] | None = None) -> int:
    """Run until SIGTERM or Ctrl-C; returns the exit code."""
    guard_terminal()
    try:
        options = _parser().parse_args(argv)
    except SystemExit as ended:
        return 1 if ended.code else 0  # argparse has printed what is wrong
    about = {"service": "operator"}
    log_to(logging.StreamHandler(), LogFormat(options.log_format), redacted, common=about)
    try:
        return _run(options, os.environ if env is None else env)  # noqa: TID251 - an entry point
    except PlatformError as error:
        hint = f"\n  {error.hint}" if error.hint else ""
        print(f"phalanx: {error.message}{hint}", file=sys.stderr, flush=True)  # noqa: T201
        return error.exit_code
    except KeyboardInterrupt:
        return 130


def _run(options: argparse.Namespace, env: Mapping[str, str]) -> int:
    from phalanx.executors.kubernetes.credentials import from_kubeconfig, in_cluster
    from phalanx.launch.tls.trust import read_ca
    from phalanx.operator.program import Operator, OperatorOptions
    from phalanx.sdk import PhalanxClient

    url, token = env.get("PHALANX_URL", ""), env.get("PHALANX_TOKEN", "")
    if not url or not token:
        raise UserError(
            "the operator needs the address of a control plane and a token",
            "set PHALANX_URL and PHALANX_TOKEN, or write `phalanx --url URL --token TOKEN operator`",
        )
    if not 1 <= options.workers <= _MOST_WORKERS:
        raise UserError(f"--workers: must be from 1 to {_MOST_WORKERS}, not {options.workers}")
    if not 0 <= options.metrics_port <= 65535:
        raise UserError(f"--metrics-port: must be a port, not {options.metrics_port}")
    scope = _scope(options.namespace, options.selector)
    ca_file = env.get("PHALANX_CA_FILE")
    ca = read_ca(Path(ca_file)) if ca_file else ""
    file = options.kubeconfig
    try:
        access = in_cluster() if file is None else from_kubeconfig(file, options.context)
    except ServerError as error:
        raise UserError(error.message, "name a file with --kubeconfig") from error
    chosen = OperatorOptions(
        pool=options.pool, cluster=options.cluster, workers=options.workers, scope=scope
    )
    operator = Operator(access, lambda: PhalanxClient(url, token, ca=ca), chosen)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: operator.stop())
    if options.metrics_port:
        operator.metrics.serve(options.metrics_port, options.metrics_host)
    operator.run()
    return 0


def _scope(namespaces: Sequence[str], selector: str) -> WatchScope:
    """The objects that are asked for. Raises UserError for names that no namespace or label can have."""
    from phalanx.operator.cluster import WatchScope

    wrong = next((name for name in namespaces if not _NAMESPACE.fullmatch(name)), None)
    if wrong is not None:
        raise UserError(
            f"--namespace: {wrong!r} is no name of a namespace",
            "write lower-case letters, digits and hyphens, 63 at most; repeat the option for several",
        )
    if selector and not _SELECTOR.fullmatch(selector):
        raise UserError(
            f"--selector: {selector!r} selects no labels",
            "write NAME=VALUE, NAME!=VALUE, NAME or !NAME, with commas between them",
        )
    return WatchScope(tuple(dict.fromkeys(namespaces)), selector)


if __name__ == "__main__":
    sys.exit(main())
