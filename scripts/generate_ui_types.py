"""Write the types of the API for the web UI, from the OpenAPI document, and the names of instruments.

Needs Node and `npm ci` in `web/`; part of `make ui`.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from fastapi import FastAPI

from phalanx.core.telemetry.instruments import INSTRUMENTS
from phalanx.server.openapi import add_routes

WEB = Path(__file__).resolve().parent.parent / "web"
SCHEMA = "src/api/schema.d.ts"
NAMES = "src/lib/instruments.ts"


def document() -> str:
    """The OpenAPI document as JSON. Answers have all of their fields, also those with a default."""
    app = FastAPI(
        title="Phalanx", docs_url=None, redoc_url=None, separate_input_output_schemas=False
    )
    add_routes(app)
    made = app.openapi()
    schemas, sent = made["components"]["schemas"], set[str]()
    bodies = [
        operation.get("requestBody", {})
        for methods in made["paths"].values()
        for operation in methods.values()
    ]
    left = _named(bodies)
    while left:
        name = left.pop()
        if name not in sent:
            sent.add(name)
            left |= _named(schemas[name])
    for name in schemas.keys() - sent:
        schemas[name]["required"] = sorted(schemas[name].get("properties", {}))
    return json.dumps(made, sort_keys=True)


def _named(part: object) -> set[str]:
    """The schemas that a part of the document refers to."""
    return set(re.findall(r"#/components/schemas/(\w+)", json.dumps(part)))


def names() -> str:
    """A module with the names of all metrics that the platform measures."""
    listed = "\n".join(f"  {json.dumps(one)}," for one in sorted(INSTRUMENTS))
    said = "/** Metrics that the platform measures. Written by scripts/generate_ui_types.py. */"
    return f"{said}\nexport const INSTRUMENTS: ReadonlySet<string> = new Set([\n{listed}\n]);\n"


def main(folder: Path = WEB) -> None:
    """Write both files below a folder, which is `web/` unless a test compares them."""
    for name in (SCHEMA, NAMES):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / NAMES).write_text(names())
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        file.write(document())
        file.flush()
        tool = WEB / "node_modules/.bin/openapi-typescript"
        command = [tool, file.name, "-o", folder / SCHEMA, "--default-non-nullable=false"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=WEB)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
