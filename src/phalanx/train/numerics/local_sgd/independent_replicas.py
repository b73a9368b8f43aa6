"""The strategy of local SGD: every rank holds the whole model and reduces no gradients."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

from phalanx.train.parallel import replica
from phalanx.train.parallel.strategies import SingleRank
from phalanx.train.state.per_rank import num_ranks


class IndependentReplicas(SingleRank):
    """Independent replicas that start from rank 0's weights; `rounds` averages them later."""

    def __init__(self, name: str) -> None:
        """Create the strategy; checkpoints record `name`."""
        self.name = name

    def wrap(
        self, model: nn.Module, device: torch.device, wishes: replica.ReplicationOptions
    ) -> nn.Module:
        """Return the same module, with rank 0's weights."""
        if num_ranks() > 1:
            with torch.no_grad():
                for tensor in [*model.parameters(), *model.buffers()]:
                    dist.broadcast(tensor, src=0)
        return model
