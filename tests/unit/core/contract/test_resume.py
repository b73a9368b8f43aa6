"""References to checkpoints, as specs and flags name them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.core.contract.resume import BEST, LATEST, ResumeReference

pytestmark = pytest.mark.unit
WHICH = st.sampled_from([LATEST, BEST, "1200", "step-00001200-0a1b2c3d"])


@given(st.integers(1, 10**17), WHICH)
def test_a_job_with_a_checkpoint_is_read_back(job, which):
    one = ResumeReference(job, which)
    assert ResumeReference.parse(str(one)) == one


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("latest", ResumeReference()),
        ("j-12", ResumeReference(12)),
        ("/a/b", ResumeReference(place="/a/b")),
        ("s3://bucket/a/", ResumeReference(place="s3://bucket/a")),
    ],
)
def test_every_form_is_read(text, wanted):
    assert ResumeReference.parse(text) == wanted
    assert ResumeReference.parse(str(wanted)) == wanted


@pytest.mark.parametrize(
    "text",
    [
        "",
        "best",
        "12",
        "j-0",
        "j-x",
        "j-1@",
        "j-1@a/b",
        "a/b",
        "/a/../b",
        "/a\0",
        "s3://",
        "x://y/z",
    ],
)
def test_anything_else_is_refused_with_what_would_be_right(text):
    with pytest.raises(ValueError, match=r"must be|NUL"):
        ResumeReference.parse(text)


def test_credentials_in_a_url_are_refused():
    with pytest.raises(ValueError, match="credentials"):
        ResumeReference.parse("s3://key:secret@bucket/a")
