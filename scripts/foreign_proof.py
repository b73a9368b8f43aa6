"""Convert job files of other tools and print a table for docs/proof/foreign.md: what became of each.

Usage: foreign_proof.py FOLDER [NAME=VALUE...]. The folder has copies of the files; values fill in
placeholders of files that have them.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path

from phalanx.errors import SpecInvalid
from phalanx.schemas.foreign.formats import convert
from phalanx.schemas.foreign.rules import Conversion
from phalanx.schemas.spec.document import resolved, validate_spec
from phalanx.schemas.spec.study import validate_study


def outcome(path: Path, values: Mapping[str, str], local: bool) -> str:
    """What becomes of one file, in a few words."""
    text = path.read_text()
    known = {
        name: value
        for name, value in values.items()
        if re.search(rf"\$\{{?{name}\b|^ +{name}:", text, re.MULTILINE)
    }
    if "distributed_type" in text:
        known["PROGRAM"] = "train.py"
    try:
        found = convert(text, path.name, known, local)
    except SpecInvalid as error:
        return f"refused: {error.problems[0].message}"
    if found is None:
        return "a job spec"
    if found.problems:
        first = str(found.problems[0]).partition(", ")[2]
        return f"refused with {len(found.problems)}: {first}"
    return _checked(found)


def _checked(found: Conversion) -> str:
    if found.is_study:
        validate_study(found.spec)
        return f"study, {len(found.warnings)} keys without effect"
    for one in found.all:
        spec = validate_spec(one.spec)
        assert validate_spec(resolved(spec)) == spec
    jobs = "job" if not found.then else f"{len(found.all)} jobs"
    return f"{jobs}, {sum(len(one.warnings) for one in found.all)} keys without effect"


def main() -> None:
    """Print a row for each file of a folder."""
    folder, values = Path(sys.argv[1]), dict(one.split("=", 1) for one in sys.argv[2:])
    print("| file | `phalanx submit` | with `--local` |\n| --- | --- | --- |")
    for path in sorted(folder.iterdir()):
        cells = [outcome(path, values, local).replace("|", "\\|") for local in (False, True)]
        print(f"| {path.name.replace('__', ': ')} | {cells[0]} | {cells[1]} |")


if __name__ == "__main__":
    main()
