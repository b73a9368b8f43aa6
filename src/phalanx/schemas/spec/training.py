"""The spec's section `training`: what the training library is told, over the script's own arguments.

Only what is given travels; `phalanx.train.init` has the defaults.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from phalanx.core.gang import meshes
from phalanx.schemas.spec.fields import (
    MAX_ENTRIES,
    MAX_NODES,
    NotEmpty,
    Positive,
    Section,
    Whether,
    WholeFromOne,
    WholeFromZero,
    optional,
)


def _off(value: Any) -> Any:
    # YAML reads a bare `off` as false.
    return "off" if value is False else value


def _none(value: Any) -> Any:
    return "none" if value is False else value


Reaction = Annotated[Literal["off", "skip", "rollback", "stop"], BeforeValidator(_off)]
Preflight = Annotated[Literal["check", "off"], BeforeValidator(_off)]


Method = Annotated[
    Literal["none", "fp16", "bf16", "powersgd", "topk", "randomk", "auto"],
    BeforeValidator(_none),
]


def _sizes(value: Any) -> Any:
    return value if value is None else meshes.parse_sizes(value)


Strategy = Annotated[str | dict[str, WholeFromOne], AfterValidator(_sizes)]


class GradientCompression(Section):
    """How replicas send their gradients to one another."""

    method: Method = Field(description="Method of gradient compression.")
    rank: WholeFromOne | None = optional("Columns of the matrices that powersgd sends.")
    fraction: Annotated[float, Field(gt=0, le=1)] | None = optional(
        "Part of each tensor's elements that topk and randomk send."
    )
    start_step: WholeFromZero | None = optional("First step with compressed gradients.")
    error_feedback: Whether | None = optional("Add the residual to the next step's gradient.")
    candidates: (
        Annotated[
            list[Literal["none", "fp16", "bf16", "powersgd", "topk", "randomk"]],
            Field(max_length=100),
        ]
        | None
    ) = optional("Methods that auto tries, the most exact first.")


SyncMethod = Annotated[
    Literal["none", "local_sgd", "diloco", "server"],
    BeforeValidator(_none),
]


class OuterOptimizer(Section):
    """SGD over the mean of the ranks' changes since the last exchange."""

    lr: Positive | None = optional("Learning rate.")
    momentum: Annotated[float, Field(ge=0, lt=1)] | None = optional("Momentum.")
    nesterov: Whether | None = optional("Use Nesterov momentum.")


class WeightSync(Section):
    """Training with independent replicas, and how they exchange weights."""

    method: SyncMethod = Field(description="Method; none reduces gradients in every step.")
    every: WholeFromOne | None = optional(
        "Optimizer steps between exchanges; 50, or 1 with server."
    )
    outer: OuterOptimizer | None = optional(
        "Optimizer that applies the mean of the ranks' changes."
    )
    fragments: WholeFromOne | None = optional(
        "Fragments that are exchanged in turn within `every` steps."
    )
    quantize: (
        Annotated[
            Literal["none", "int8", "int4"],
            BeforeValidator(_none),
        ]
        | None
    ) = optional("Quantization of exchanged values.")
    control_every: WholeFromOne | None = optional(
        "Steps between checks for stop and save requests; absent: about a second; with server: 1."
    )
    servers: WholeFromOne | None = optional(
        "With server: number of last ranks that hold the weights."
    )
    staleness: WholeFromZero | None = optional(
        "With server: exchanges a rank may be ahead of the slowest; 0: none."
    )


class Network(Section):
    """Variables of NCCL and gloo for ranks; `env` overrides them."""

    preset: Literal["nvlink", "infiniband", "ethernet", "ethernet_fast"] | None = optional(
        "Settings for this interconnect."
    )
    interface: str | None = Field(
        default=None, min_length=1, max_length=64, description="Network interface, such as eth1."
    )
    debug: Literal["version", "warn", "info", "trace"] | None = optional("Log level of NCCL.")


class Training(Section):
    """Precision, batch and guards of scripts that use `phalanx.train`; absent: the script's own."""

    strategy: Strategy | None = optional(
        "Strategy: ddp, fsdp, tp, pp, auto, or sizes such as {fsdp: 2, tp: 2}."
    )
    pipeline_schedule: Literal["1f1b", "gpipe", "interleaved"] | None = optional(
        "Order in which pipeline stages work on micro-batches."
    )
    micro_batches: WholeFromOne | None = optional(
        "Number of micro-batches that a batch is split into for pipeline stages."
    )
    pipeline_split: Annotated[list[NotEmpty], Field(max_length=MAX_ENTRIES)] | None = optional(
        "First layer of each pipeline stage but the first; absent: stages of equal size."
    )
    precision: Literal["fp32", "bf16", "fp16"] | None = optional(
        "Precision of the forward pass; fp16 needs `run.backward(loss)`."
    )
    accumulate: WholeFromOne | None = optional("Micro-batches in one optimizer step.")
    clip: Positive | None = optional("Upper bound of the gradients' norm.")
    max_micro_batch: WholeFromOne | None = optional(
        "Maximum samples of a micro-batch; larger batches are split."
    )
    sync_batchnorm: Whether | None = optional("Compute batch norm statistics over all ranks.")
    activation_checkpointing: (
        Whether | Annotated[list[NotEmpty], Field(max_length=MAX_ENTRIES)] | None
    ) = optional("Recompute activations in the backward pass: true, or a list of module classes.")
    on_resize: Literal["keep_batch", "scale_batch"] | None = optional(
        "Keep the global batch at a resize, or scale it with the world size."
    )
    scale_lr: Literal["none", "linear", "sqrt"] | None = optional(
        "Multiply the learning rate by the number of ranks of the first start, or by its square root."
    )
    warmup_steps: WholeFromZero | None = optional(
        "Steps over which the learning rate adapts to a scaled batch, or to `scale_lr`."
    )
    on_non_finite: Reaction | None = optional("Reaction to gradients that are not finite.")
    on_spike: Reaction | None = optional("Reaction to a spike of the value logged as `loss`.")
    deterministic: Whether | None = optional("Use only deterministic kernels.")

    straggler_window: WholeFromZero | None = optional(
        "Steps between comparisons of ranks' compute times; 0: never."
    )

    compression: GradientCompression | Method | None = optional(
        "Gradient compression: a method, or a section."
    )
    sync: WeightSync | SyncMethod | None = optional(
        "Training with independent replicas that exchange weights: a method, or a section."
    )
    batch_shares: (
        Literal["even", "auto"]
        | Annotated[list[Positive], Field(min_length=1, max_length=MAX_NODES)]
        | None
    ) = optional("Each rank's part of a batch: even, auto (by speed), or a list.")
    data_changed: Literal["refuse", "allow"] | None = optional(
        "Reaction to a resume on other data."
    )

    preflight: Preflight | None = optional(
        "Compare versions, devices and hosts of the ranks at the start."
    )

    network: Network | None = optional("Variables of NCCL and gloo, by interconnect.")

    def given(self) -> dict[str, Any]:
        """What the spec says, and nothing else."""
        return self.model_dump(exclude_none=True)
