"""Control words: requests that the ranks of one node exchange without a collective.

A page of memory shared by the ranks of one node holds two words per local rank, one for even and one
for odd steps. A rank writes its word for step n before the gradients of step n are reduced and reads
the words of all ranks after the reduction. The reduction is the barrier, so all read the same. Two
slots are enough: no rank can write for step n + 2 before all ranks have read step n.

A word is 64 bits, little endian: the step's number in the upper 48, requests in the lower 16.
"""

from __future__ import annotations

STOP = 1
"""Leave at the end of this step."""
SAVE = 2
"""Save at the end of this step."""
ROLL_BACK = 4
"""End the generation at the end of this step and begin the next one before an earlier step."""
PROFILE = 8
"""Begin the requested profile at the end of this step."""
REQUESTS = (STOP, SAVE, ROLL_BACK, PROFILE)
"""Every request there is."""

SAVE_SUFFIX = ".save"
"""Suffix of the file beside rank 0's report file that holds the number of the newest save request."""

PAGE_BYTES = 4096
WORD_BYTES = 8
_REQUESTS = 0xFFFF


def word(step: int, requests: int) -> int:
    """The word a rank writes for `step`."""
    return (step << 16) | (requests & _REQUESTS)


def offset(local_rank: int, step: int) -> int:
    """Where in the page the word of this local rank for this step lies, in bytes."""
    return (local_rank * 2 + (step & 1)) * WORD_BYTES


def page_bytes(local_world_size: int) -> int:
    """Size of the page: whole pages of 4096 bytes."""
    need = local_world_size * 2 * WORD_BYTES
    return -(-need // PAGE_BYTES) * PAGE_BYTES


def step_of(value: int) -> int:
    """The step a word was written for."""
    return value >> 16


def requests_of(value: int) -> int:
    """The requests in a word."""
    return value & _REQUESTS
