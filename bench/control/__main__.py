"""The benchmark of the control plane: `python -m bench.control [--only lists,memory] [--quick]`."""

from __future__ import annotations

import argparse
import statistics
import time

from bench.control import (
    ingest,
    lists,
    live,
    logs,
    memory,
    metrics,
    phases,
    runs,
    scrape,
    throughput,
)

PARTS = (
    *("ingest", "lists", "live", "logs", "memory", "metrics", "phases", "runs", "scrape"),
    "throughput",
)


def _machine() -> str:
    """How fast one core is now: figures of two machines, or of two hours, are comparable only with it."""
    taken = []
    for _ in range(9):
        began = time.process_time()
        sum(number * number for number in range(100_000))
        taken.append(time.process_time() - began)
    said = f"{statistics.median(taken) * 1e3:.1f} ms of processor time"
    return f"machine: 100,000 squares in Python take {said}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help=f"some of {', '.join(PARTS)}")
    parser.add_argument("--quick", action="store_true", help="a tenth of the rows, or of the time")
    parser.add_argument("--jobs", type=int, default=100_000, help="jobs of the part lists")
    parser.add_argument("--events", type=int, default=10_000_000, help="events of the part lists")
    parser.add_argument(
        "--seconds", type=float, default=60.0, help="submissions of the part throughput"
    )
    parser.add_argument(
        "--databases",
        default="sqlite,postgresql",
        help="databases that are measured",
    )
    parser.add_argument(
        "--batches", default="1,100", help="jobs of a request in the part throughput"
    )
    parser.add_argument(
        "--keep", default="", help="a folder that keeps the filled databases of the part lists"
    )
    parser.add_argument(
        "--replicas",
        type=int,
        default=0,
        help="control planes beside the leader on PostgreSQL in the part throughput",
    )
    parser.add_argument("--clients", type=int, default=300, help="open streams of the part live")
    parser.add_argument("--profile", default="", help="a file for cProfile in the part phases")
    parser.add_argument("--peers", default="", help="a Python with MLflow for the part ingest")
    given = parser.parse_args()
    wanted = given.only.split(",") if given.only else list(PARTS)
    if unknown := set(wanted) - set(PARTS):
        parser.error(f"--only: {', '.join(sorted(unknown))} is none of {', '.join(PARTS)}")
    scale, kept = 10 if given.quick else 1, []
    sizes = tuple(int(one) for one in given.batches.split(","))
    databases = tuple(given.databases.split(","))
    print(_machine())
    if "ingest" in wanted:
        kept.append(ingest.report(databases, 40 // scale, given.peers))
    if "lists" in wanted:
        rows = (given.jobs // scale, given.events // scale)
        kept.append(lists.report(databases, *rows, given.keep))
    if "live" in wanted:
        kept.append(live.report(databases, given.clients, 25.0, 20.0 / scale))
    if "logs" in wanted:
        kept.append(logs.report(databases, 1024 // scale))
    if "phases" in wanted:
        kept.append(phases.report(databases, max(sizes), given.profile))
    if "memory" in wanted:
        kept.append(memory.report(databases, 64 if given.quick else 1024, 10_000 // scale))
    if "metrics" in wanted:
        kept.append(metrics.report(databases, 500 // scale, 40 // scale))
    if "runs" in wanted:
        kept.append(runs.report(databases, given.jobs // scale))
    if "scrape" in wanted:
        kept.append(scrape.report(databases, 100 if given.quick else 1_000))
    if "throughput" in wanted:
        kept.append(throughput.report(given.seconds / scale, databases, sizes, given.replicas))
    print(_machine())
    return 0 if all(kept) else 1


if __name__ == "__main__":
    raise SystemExit(main())
