"""The spec's section `training`: what the training library is told, over the script's own arguments.

Only what is given travels; `phalanx.train.init` has the defaults.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from phalanx.core.gang import meshes
from phalanx.schemas.spec.fields import (
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

    method: Method = Field(description="What travels in place of the gradients.")
    rank: WholeFromOne | None = optional("Columns that powersgd sends.")
    fraction: Annotated[float, Field(gt=0, le=1)] | None = optional(
        "Part of each tensor's elements that topk and randomk send."
    )
    start_step: WholeFromZero | None = optional("Steps before this one send everything.")
    error_feedback: Whether | None = optional("Add what was not sent to the next step's gradient.")
    candidates: list[Literal["none", "fp16", "bf16", "powersgd", "topk", "randomk"]] | None = (
        optional("What auto tries, the most faithful first.")
    )


SyncMethod = Annotated[
    Literal["none", "local_sgd", "diloco", "server"],
    BeforeValidator(_none),
]


class OuterOptimizer(Section):
    """SGD over the mean of what the ranks did since the last exchange."""

    lr: Annotated[float, Field(gt=0)] | None = optional("Learning rate.")
    momentum: Annotated[float, Field(ge=0, lt=1)] | None = optional("Momentum.")
    nesterov: Whether | None = optional("Nesterov's form of it.")


class WeightSync(Section):
    """Ranks that train on their own, and how they exchange weights."""

    method: SyncMethod = Field(description="How ranks keep together; none reduces every gradient.")
    every: WholeFromOne | None = optional(
        "Optimizer steps between exchanges; 50, or 1 with server."
    )
    outer: OuterOptimizer | None = optional(
        "What makes new weights of the mean of the ranks' progress."
    )
    fragments: WholeFromOne | None = optional(
        "Parts of the model that take turns within `every` steps."
    )
    quantize: (
        Annotated[
            Literal["none", "int8", "int4"],
            BeforeValidator(_none),
        ]
        | None
    ) = optional("Bits of a value on its way.")
    control_every: WholeFromOne | None = optional(
        "Steps between requests to stop or save; absent: about a second, with server 1."
    )
    servers: WholeFromOne | None = optional(
        "With server: how many of the last ranks hold the weights."
    )
    staleness: WholeFromZero | None = optional(
        "With server: exchanges a rank may be ahead of the slowest; 0: none."
    )


class Network(Section):
    """Variables of NCCL and gloo for ranks; what `env` says stands over them."""

    preset: Literal["nvlink", "infiniband", "ethernet", "ethernet_fast"] | None = optional(
        "What suits this interconnect."
    )
    interface: str | None = Field(
        default=None, min_length=1, max_length=64, description="Network interface, such as eth1."
    )
    debug: Literal["version", "warn", "info", "trace"] | None = optional("What NCCL prints.")


class Training(Section):
    """Precision, batch and guards of scripts that use `phalanx.train`; absent: the script's own."""

    strategy: Strategy | None = optional(
        "How ranks share the model: ddp, fsdp, tp, pp, auto, or sizes as {fsdp: 2, tp: 2}."
    )
    pipeline_schedule: Literal["1f1b", "gpipe", "interleaved"] | None = optional(
        "In which order pipeline stages work on micro-batches."
    )
    micro_batches: WholeFromOne | None = optional(
        "Pieces of a batch that travel through pipeline stages."
    )
    pipeline_split: list[str] | None = optional(
        "Layers that begin a pipeline stage; absent: equally heavy ones."
    )
    precision: Literal["fp32", "bf16", "fp16"] | None = optional(
        "Of the forward pass; fp16 needs `run.backward(loss)`."
    )
    accumulate: WholeFromOne | None = optional("Micro-batches in one optimizer step.")
    clip: Annotated[float, Field(gt=0)] | None = optional("Upper bound of the gradients' norm.")
    max_micro_batch: WholeFromOne | None = optional(
        "Samples that a rank gets at once; more are given out in pieces."
    )
    sync_batchnorm: Whether | None = optional("Statistics of batch norms over all ranks.")
    activation_checkpointing: Whether | list[str] | None = optional(
        "Compute activations a second time: true, or module classes."
    )
    on_resize: Literal["keep_batch", "scale_batch"] | None = optional(
        "Whether the global batch follows the world size."
    )
    warmup_steps: WholeFromZero | None = optional(
        "Steps in which the learning rate follows a scaled batch."
    )
    on_non_finite: Reaction | None = optional("What to do about gradients that are not finite.")
    on_spike: Reaction | None = optional("What to do when the value logged as `loss` jumps.")
    deterministic: Whether | None = optional("Only kernels that always give the same sums.")

    straggler_window: WholeFromZero | None = optional(
        "Steps between comparisons of ranks' compute times; 0: never."
    )

    compression: GradientCompression | Method | None = optional(
        "How replicas send gradients: a method, or one with its settings."
    )
    sync: WeightSync | SyncMethod | None = optional(
        "Have ranks train on their own and exchange weights: a method, or a section."
    )
    batch_shares: (
        Literal["even", "auto"]
        | Annotated[list[Annotated[float, Field(gt=0)]], Field(min_length=1)]
        | None
    ) = optional("Each rank's part of a batch: even, auto (by speed), or a list.")
    data_changed: Literal["refuse", "allow"] | None = optional(
        "What to do about a resume on other data."
    )

    preflight: Preflight | None = optional(
        "Whether ranks compare versions, devices and hosts at the start."
    )

    network: Network | None = optional("Variables of NCCL and gloo, by interconnect.")

    def given(self) -> dict[str, Any]:
        """What the spec says, and nothing else."""
        return self.model_dump(exclude_none=True)
