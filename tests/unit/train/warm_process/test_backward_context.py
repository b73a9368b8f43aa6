"""Operations of a forked rank's backward passes keep no context variables."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.unit

PROGRAM = """
import torch
from phalanx.train.warm_process import fork_server

{guard}
seen = []
value = torch.ones(1, requires_grad=True)
doubled = value * 2
doubled.register_hook(lambda gradient: seen.append(torch._C._is_key_in_tls("context")))
doubled.backward()
torch._C._stash_obj_in_tls("other", 7)
print(*seen, torch._C._get_obj_in_tls("other"))
"""


def printed(guard):
    words = [sys.executable, "-c", PROGRAM.format(guard=guard)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_a_forked_rank_attaches_no_context_and_other_values_stay():
    assert printed("fork_server._keep_contexts_out_of_operations()") == ["False", "7"]


def test_torch_attaches_one_without_the_guard():
    assert printed("") == ["True", "7"]
