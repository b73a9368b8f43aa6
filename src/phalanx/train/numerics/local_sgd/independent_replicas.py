"""A strategy for ranks that train on their own: every one holds the whole model and reduces nothing."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

from phalanx.train.parallel import replica
from phalanx.train.parallel.strategies import SingleRank
from phalanx.train.state.per_rank import num_ranks


class IndependentReplicas(SingleRank):
    """Ranks begin with rank 0's weights; what keeps them together later is `rounds`."""

    def __init__(self, name: str) -> None:
        """`name` is what checkpoints call it."""
        self.name = name

    def wrap(
        self, model: nn.Module, device: torch.device, wishes: replica.ReplicationOptions
    ) -> nn.Module:
        """The same module, with rank 0's weights."""
        if num_ranks() > 1:
            with torch.no_grad():
                for tensor in [*model.parameters(), *model.buffers()]:
                    dist.broadcast(tensor, src=0)
        return model
