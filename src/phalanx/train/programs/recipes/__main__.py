"""The program of `phalanx recipe train` on every rank: `python -m phalanx.train.programs.recipes`."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from phalanx.errors import PreflightFailed, RestoreMismatch, UserError
from phalanx.train.gang import context, failure
from phalanx.train.programs.recipes import settings


def main(arguments: Sequence[str] | None = None) -> int:
    """Train, or only check the flags; returns the exit code."""
    try:
        recipe, only_check = settings.read(sys.argv[1:] if arguments is None else arguments)
        if only_check:
            found = settings.as_job(recipe)
            if only_check == "study":
                found["study"] = settings.as_study(recipe, json.load(sys.stdin))
            sys.stdout.write(json.dumps(found) + "\n")
            return 0
        recipe = settings.with_params(recipe, context.read().trial.params)
        from phalanx.train.programs.recipes.trainer import train

        train(recipe)
    except (UserError, RestoreMismatch, PreflightFailed) as error:
        error.__cause__, error.__suppress_context__ = None, True
        # The traceback inside this package does not help: only the message is shown.
        failure.write(context.error_file(), error.with_traceback(None))
        sys.stderr.write(f"phalanx recipe train: {error}\n")
        return error.exit_code
    except SystemExit as left:
        if left.code == 2:  # argparse's code for wrong usage
            return 1
        raise
    return 0


if __name__ == "__main__":
    sys.exit(main())
