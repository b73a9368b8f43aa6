"""What a dead rank is said to have died of."""

import json

import pytest

from phalanx.core.gang.failures import from_error_file, from_stderr, rank_exit, signal_name

pytestmark = pytest.mark.unit

TRACE = """some output
Traceback (most recent call last):
  File "train.py", line 3, in <module>
    main()
torch.distributed.DistBackendError: NCCL error
with a second line
"""


def test_success_says_nothing():
    found = rank_exit(3, 0, 17, None, TRACE.encode())
    assert (found.rank, found.at, found.exit_code, found.exception) == (3, 17, 0, None)


def test_a_signal():
    found = rank_exit(0, -9, 17, None, TRACE.encode())
    assert (found.signal, found.exit_code, found.exception) == (9, None, None)
    assert signal_name(found.signal) == "SIGKILL"


def test_a_crash_keeps_the_interpreters_own_stack():
    text = "noise\nFatal Python error: Segmentation fault\n\nThread 0x01:\n  File x\n"
    assert rank_exit(0, -11, 1, None, text.encode()).traceback.startswith("Fatal Python error")


def test_a_traceback_on_stderr():
    found = rank_exit(0, 1, 17, None, TRACE.encode())
    assert (found.exit_code, found.exception) == (1, "DistBackendError")
    assert found.message == "NCCL error\nwith a second line"
    assert found.traceback.startswith("Traceback (most")


def test_the_prefix_torch_prints_is_taken_off():
    prefixed = "\n".join(f"[rank2]: {line}" for line in TRACE.splitlines()[1:])
    found = from_stderr(prefixed)
    assert found.exception == "DistBackendError"
    assert "[rank2]" not in found.traceback


def test_the_last_of_several_tracebacks_counts():
    text = (
        TRACE + "\nDuring handling …\n\nTraceback (most recent call last):\n  File x\nValueError\n"
    )
    assert from_stderr(text).exception == "ValueError"
    assert from_stderr(text).message == ""


def test_a_syntax_error_has_no_headline():
    text = '  File "/job/train.py", line 1\n    def (\n        ^\nSyntaxError: invalid syntax\n'
    found = from_stderr(text)
    assert (found.exception, found.message) == ("SyntaxError", "invalid syntax")
    assert found.traceback.startswith('  File "/job')


@pytest.mark.parametrize(
    ("text", "exception"),
    [
        (
            "python: can't open file '/x.py': [Errno 2] No such file or directory",
            "FileNotFoundError",
        ),
        ("/bin/python: No module named job", "ModuleNotFoundError"),
        ("ValueError: this is not a traceback", None),
        ("", None),
        ("\x00\ud800?", None),
    ],
)
def test_other_last_words(text, exception):
    assert from_stderr(text).exception == exception


def test_the_error_file_wins():
    extra = {"py_callstack": "T", "timestamp": "1", "exc_type": "KeyError"}
    body = {"message": {"message": "KeyError: 'x: y'", "extraInfo": extra}}
    found = rank_exit(0, 1, 17, json.dumps(body), TRACE.encode())
    assert (found.exception, found.message, found.traceback) == ("KeyError", "'x: y'", "T")


def test_torchs_own_error_file_names_no_type_apart():
    body = {"message": {"message": "RuntimeError: a: b", "extraInfo": {"py_callstack": "T"}}}
    found = from_error_file(json.dumps(body))
    assert (found.exception, found.message) == ("RuntimeError", "a: b")


@pytest.mark.parametrize("text", ["", "{", "[]", '{"message": 3}', '{"x": 1}', "null"])
def test_a_broken_error_file_is_passed_over(text):
    assert from_error_file(text) is None
    found = rank_exit(0, 1, 17, text, TRACE.encode())
    assert found.exception == "DistBackendError"


@pytest.mark.parametrize("name", ["ParamsRejected", "Diverged", "CheckpointMissing"])
def test_our_own_exceptions_are_known_by_what_is_printed_alone(name):
    text = (
        f'Traceback (most recent call last):\n  File "t.py", line 3\nphalanx.errors.{name}: why\n'
    )
    found = rank_exit(0, 1, 0, None, text.encode())
    assert (found.exception, found.message) == (name, "why")
