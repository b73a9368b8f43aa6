"""The benchmark of the control plane: `python -m bench.control [--only lists] [--quick]`."""

from __future__ import annotations

import argparse

from bench.control import lists

PARTS = {"lists": lists.report}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help=f"some of {', '.join(PARTS)}")
    parser.add_argument("--quick", action="store_true", help="a tenth of the rows")
    parser.add_argument("--jobs", type=int, default=100_000, help="jobs of the part lists")
    parser.add_argument("--events", type=int, default=10_000_000, help="events of the part lists")
    given = parser.parse_args()
    wanted = given.only.split(",") if given.only else list(PARTS)
    if unknown := set(wanted) - set(PARTS):
        parser.error(f"--only: {', '.join(sorted(unknown))} is none of {', '.join(PARTS)}")
    scale = 10 if given.quick else 1
    kept = [PARTS[name](given.jobs // scale, given.events // scale) for name in wanted]
    return 0 if all(kept) else 1


if __name__ == "__main__":
    raise SystemExit(main())
