"""What a rank is doing, read from its stacks: whether a long pause has a good reason."""

from __future__ import annotations

import re
from enum import StrEnum

from phalanx.core.gang.stacks import main_thread, waits_for_others

STOPPED_BY_SIGNAL = "the process is stopped by a signal"
"""Part of the reason why a rank sent no stacks: it was stopped, and cannot answer."""


class Activity(StrEnum):
    """What a rank does while its gang makes no step."""

    STOPPED = "stopped"  # by a signal: it does nothing at all
    COMPILING = "compiling"
    SAVING = "saving"
    VALIDATING = "validating"
    WAITING = "waiting"  # for other ranks, in a collective
    OTHER = "other"
    UNKNOWN = "unknown"  # it sent no stacks


# A compiled function that only runs has frames of `eval_frame` and of generated files, not of these.
_COMPILING = re.compile(
    r"/torch/_dynamo/(?:convert_frame|symbolic_convert|output_graph)\.py"
    r"|/torch/_inductor/(?:graph|scheduler|async_compile|select_algorithm|cpp_builder)\.py"
    r"|/torch/_inductor/codegen/|/torch/utils/cpp_extension\.py|/triton/compiler/"
    r"|/jax/_src/compiler\.py|/jax/_src/interpreters/mlir\.py"
)
_SAVING = re.compile(
    r"/torch/serialization\.py (?:save|_save)\b|/torch/distributed/checkpoint/|/safetensors/"
    r"|/phalanx/checkpoint/|/phalanx/train/state/(?:saving|committer|staging)|/orbax/checkpoint/"
    r"|/numpy/lib/\S*npyio\S* save"
)
_SCRIPT_SAVES = re.compile(r"(?:^|_)(?:save|saves|saving|checkpoint|snapshot|export|upload)", re.I)
_SCRIPT_VALIDATES = re.compile(
    r"(?:^|_)(?:valid(?:ate|ation)?|eval(?:uate|uation)?|test|infer(?:ence)?|predict)(?:_|$)", re.I
)


def activity_of(text: str, why: str = "") -> Activity:
    """What the rank with these stacks does; `why` says why there are none.

    Names of functions of the script count as they are written: `validate` validates.
    """
    if not text:
        return Activity.STOPPED if STOPPED_BY_SIGNAL in why else Activity.UNKNOWN
    if _COMPILING.search(text):
        return Activity.COMPILING  # in any thread: that of a backward pass compiles, too
    frames = main_thread(text)
    places = [f"{frame.file} {frame.name}" for frame in frames]
    if any(_SAVING.search(one) for one in places):
        return Activity.WAITING if waits_for_others(text) else Activity.SAVING
    if waits_for_others(text):
        return Activity.WAITING
    if any(_SCRIPT_SAVES.search(frame.name) for frame in frames):
        return Activity.SAVING
    if any(_SCRIPT_VALIDATES.search(frame.name) for frame in frames):
        return Activity.VALIDATING
    return Activity.OTHER if frames else Activity.UNKNOWN
