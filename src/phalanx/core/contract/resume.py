"""Where a job begins: a checkpoint of another job, or one at a path or in an object store.

`ResumeReference` is what a spec says (`checkpoint.resume_from`), `ResumeSource` what it was at the time of
the submission: attempts that start later read the same checkpoint.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from phalanx.core.training.checkpoints import far_prefix
from phalanx.kit.text import job_label

LATEST, BEST = "latest", "best"
_JOB = re.compile(r"j-(?P<job>[1-9]\d{0,17})(?:@(?P<which>[A-Za-z0-9._-]{1,200}))?")
_FORMS = (
    "must be latest, a job (j-12, j-12@1200, j-12@best), an absolute path, or a URL such as "
    "s3://bucket/prefix/step-…"
)


@dataclass(frozen=True, slots=True)
class ResumeReference:
    """The checkpoint that a spec names. Without a job and a place: of the newest job of the same name."""

    job: int | None = None
    which: str = LATEST  # latest, best, a step, or the name of a checkpoint
    place: str = ""  # a path or URL of a checkpoint, or of a folder with some

    @classmethod
    def parse(cls, text: str) -> ResumeReference:
        """From `latest`, `j-12`, `j-12@1200`, an absolute path or a URL. Raises ValueError."""
        if "\0" in text:
            raise ValueError("cannot hold a NUL byte")
        if text == LATEST:
            return cls()
        if (found := _JOB.fullmatch(text)) is not None:
            return cls(int(found["job"]), found["which"] or LATEST)
        if "://" in text:
            return cls(place=far_prefix(text))
        if text.startswith("/") and ".." not in text.split("/"):
            return cls(place=text)
        raise ValueError(_FORMS)

    def __str__(self) -> str:
        """The text that `parse` reads."""
        if self.place:
            return self.place
        return LATEST if self.job is None else f"{job_label(self.job)}@{self.which}"


@dataclass(frozen=True, slots=True)
class ResumeSource:
    """The checkpoint that a job begins from. The first of `places` that can be read counts."""

    places: tuple[str, ...]
    job: int | None = None  # the job that wrote it; None: not known
    step: int | None = None  # None: not known
