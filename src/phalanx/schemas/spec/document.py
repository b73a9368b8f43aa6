"""The job spec: `JobSpec`, how it is read, what is not built yet, and its JSON schema.

spec = load_spec(Path("job.yaml"))          # SpecInvalid: every problem, with its path
problems = check_supported(spec)            # fields that are understood but not built yet
terms = spec.to_policy()                     # for the job machine
"""

from phalanx.schemas.spec.models import SPEC_SCHEMA, JobSpec
from phalanx.schemas.spec.problems import problems_of
from phalanx.schemas.spec.python import short_form
from phalanx.schemas.spec.support import check_supported
from phalanx.schemas.spec.text import (
    json_schema,
    load_spec,
    read_text,
    read_yaml,
    resolved,
    script_defaults,
    to_yaml,
    validate_spec,
)

__all__ = [
    "SPEC_SCHEMA",
    "JobSpec",
    "check_supported",
    "json_schema",
    "load_spec",
    "problems_of",
    "read_text",
    "read_yaml",
    "resolved",
    "script_defaults",
    "short_form",
    "to_yaml",
    "validate_spec",
]
