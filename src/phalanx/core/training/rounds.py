"""The schedule by which ranks that train independently exchange parts of the model.

A round lasts `every` optimizer steps. The model is cut into fragments that take turns within it, so that
the link carries a part at a time. The schedule depends on nothing but the number of the step.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise


def due(step: int, every: int, num_fragments: int) -> tuple[int, ...]:
    """The fragments that are exchanged after optimizer step `step` (from 1)."""
    return tuple(
        fragment
        for fragment in range(num_fragments)
        if step > 0 and (step - offset(fragment, every, num_fragments)) % every == 0
    )


def offset(fragment: int, every: int, num_fragments: int) -> int:
    """How many steps after the round's own a fragment is exchanged."""
    return fragment * every // num_fragments


def fragments(sizes: Sequence[int], num_fragments: int) -> list[range]:
    """Cut a row of tensors of these sizes into runs of about equal size, in order; none is empty.

    There are fewer runs than asked for where there are fewer tensors.
    """
    num = max(1, min(num_fragments, len(sizes)))
    ends = list(accumulate(sizes))
    total = ends[-1] if ends else 0
    cuts = [0]
    for number in range(1, num):
        want = total * number / num
        # At least one tensor for this run, and for each that follows.
        low, high = cuts[-1] + 1, len(sizes) - (num - number)
        cuts.append(min(range(low, high + 1), key=lambda at: abs(ends[at - 1] - want)))
    cuts.append(len(sizes))
    return [range(lo, hi) for lo, hi in pairwise(cuts)]
