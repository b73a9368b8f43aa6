"""The section `python`: short forms, and what must not stand in it."""

import pytest

from phalanx.errors import SpecInvalid
from phalanx.schemas.spec.document import resolved, validate_spec

pytestmark = pytest.mark.unit


def python_of(section):
    return validate_spec({"run": "python a.py", "python": section}).python


def test_short_forms():
    assert python_of("needs.txt").requirements == "needs.txt"
    assert python_of(["einops==0.8.1"]).packages == ["einops==0.8.1"]
    assert python_of({"packages": ["a"]}).installer == "auto"
    assert validate_spec({"run": "true"}).python is None


def test_what_is_written_can_be_read_again():
    section = {
        "requirements": "a/needs.txt",
        "packages": ["b"],
        "installer": "uv",
        "index_url": "none",
        "extra_index_urls": ["https://host/simple"],
        "find_links": ["wheels"],
    }
    spec = validate_spec({"run": "true", "python": section})
    assert validate_spec(resolved(spec)) == spec


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ({}, "give `requirements`, `packages` or both"),
        ("/etc/needs.txt", "inside the work directory"),
        ("../needs.txt", "inside the work directory"),
        (["--index-url https://host"], "options have their own keys"),
        ({"packages": ["a"], "index_url": "https://me:word@host/simple"}, "PIP_INDEX_URL"),
        ({"packages": ["a"], "extra_index_urls": ["https://t0ken@host/simple"]}, "PIP_INDEX_URL"),
        ({"packages": ["a @ https://me:word@host/a.whl"]}, "PIP_INDEX_URL"),
        ({"packages": ["a"], "index_url": "pypi"}, "the address of a package index"),
        ({"packages": ["a"], "installer": "conda"}, "pip"),
        ({"package": ["a"]}, "packages"),
    ],
)
def test_mistakes_are_told(section, said):
    with pytest.raises(SpecInvalid) as caught:
        python_of(section)
    assert said in str([problem.message for problem in caught.value.problems])
