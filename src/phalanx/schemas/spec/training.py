"""The spec's section `training`: what the training library is told, over the script's own arguments.

Only what is given travels; `phalanx.train.init` has the defaults.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from phalanx.core.gang import meshes
from phalanx.schemas.spec.fields import Section, WholeFromOne, WholeFromZero


def _off(value: Any) -> Any:
    # YAML reads a bare `off` as false.
    return "off" if value is False else value


NonFinite = Annotated[Literal["off", "skip", "rollback", "stop"], BeforeValidator(_off)]
Spike = Annotated[Literal["off", "skip", "rollback", "stop"], BeforeValidator(_off)]
Preflight = Annotated[Literal["check", "off"], BeforeValidator(_off)]
Switch = Annotated[bool, Field(strict=True)]


Method = Annotated[
    Literal["none", "fp16", "bf16", "powersgd", "topk", "randomk", "auto"],
    BeforeValidator(lambda value: "none" if value is False else value),
]


def _sizes(value: Any) -> Any:
    return value if value is None else meshes.parse_sizes(value)


Strategy = Annotated[str | dict[str, WholeFromOne], AfterValidator(_sizes)]


class GradientCompression(Section):
    """How replicas send their gradients to one another."""

    method: Method = Field(description="What travels in place of the gradients.")
    rank: WholeFromOne | None = Field(default=None, description="Columns that powersgd sends.")
    fraction: Annotated[float, Field(gt=0, le=1)] | None = Field(
        default=None, description="Part of each tensor's elements that topk and randomk send."
    )
    start_step: WholeFromZero | None = Field(
        default=None, description="Steps before this one send everything."
    )
    error_feedback: Switch | None = Field(
        default=None, description="Add what was not sent to the next step's gradient."
    )
    candidates: list[Literal["none", "fp16", "bf16", "powersgd", "topk", "randomk"]] | None = Field(
        default=None, description="What auto tries, the most faithful first."
    )


SyncMethod = Annotated[
    Literal["none", "local_sgd", "diloco", "server"],
    BeforeValidator(lambda value: "none" if value is False else value),
]


class OuterOptimizer(Section):
    """SGD over the mean of what the ranks did since the last exchange."""

    lr: Annotated[float, Field(gt=0)] | None = Field(default=None, description="Learning rate.")
    momentum: Annotated[float, Field(ge=0, lt=1)] | None = Field(
        default=None, description="Momentum."
    )
    nesterov: Switch | None = Field(default=None, description="Nesterov's form of it.")


class WeightSync(Section):
    """Ranks that train on their own, and how they exchange weights."""

    method: SyncMethod = Field(description="How ranks keep together; none reduces every gradient.")
    every: WholeFromOne | None = Field(
        default=None, description="Optimizer steps between exchanges; 50, or 1 with server."
    )
    outer: OuterOptimizer | None = Field(
        default=None, description="What makes new weights of the mean of the ranks' progress."
    )
    fragments: WholeFromOne | None = Field(
        default=None, description="Parts of the model that take turns within `every` steps."
    )
    quantize: (
        Annotated[
            Literal["none", "int8", "int4"],
            BeforeValidator(lambda value: "none" if value is False else value),
        ]
        | None
    ) = Field(default=None, description="Bits of a value on its way.")
    control_every: WholeFromOne | None = Field(
        default=None,
        description="Steps between requests to stop or save; absent: about a second, with server 1.",
    )
    servers: WholeFromOne | None = Field(
        default=None, description="With server: how many of the last ranks hold the weights."
    )
    staleness: WholeFromZero | None = Field(
        default=None,
        description="With server: exchanges a rank may be ahead of the slowest; 0: none.",
    )


class Network(Section):
    """Variables of NCCL and gloo for ranks; what `env` says stands over them."""

    preset: Literal["nvlink", "infiniband", "ethernet", "ethernet_fast"] | None = Field(
        default=None, description="What suits this interconnect."
    )
    interface: str | None = Field(
        default=None, min_length=1, max_length=64, description="Network interface, such as eth1."
    )
    debug: Literal["version", "warn", "info", "trace"] | None = Field(
        default=None, description="What NCCL prints."
    )


class Training(Section):
    """Precision, batch and guards of scripts that use `phalanx.train`; absent: the script's own."""

    strategy: Strategy | None = Field(
        default=None,
        description="How ranks share the model: ddp, fsdp, tp, pp, auto, or sizes as {fsdp: 2, tp: 2}.",
    )
    pipeline_schedule: Literal["1f1b", "gpipe", "interleaved"] | None = Field(
        default=None, description="In which order pipeline stages work on micro-batches."
    )
    micro_batches: WholeFromOne | None = Field(
        default=None, description="Pieces of a batch that travel through pipeline stages."
    )
    pipeline_split: list[str] | None = Field(
        default=None, description="Layers that begin a pipeline stage; absent: equally heavy ones."
    )
    precision: Literal["fp32", "bf16", "fp16"] | None = Field(
        default=None, description="Of the forward pass; fp16 needs `run.backward(loss)`."
    )
    accumulate: WholeFromOne | None = Field(
        default=None, description="Micro-batches in one optimizer step."
    )
    clip: Annotated[float, Field(gt=0)] | None = Field(
        default=None, description="Upper bound of the gradients' norm."
    )
    max_micro_batch: WholeFromOne | None = Field(
        default=None, description="Samples that a rank gets at once; more are given out in pieces."
    )
    sync_batchnorm: Switch | None = Field(
        default=None, description="Statistics of batch norms over all ranks."
    )
    activation_checkpointing: Switch | list[str] | None = Field(
        default=None, description="Compute activations a second time: true, or module classes."
    )
    on_resize: Literal["keep_batch", "scale_batch"] | None = Field(
        default=None, description="Whether the global batch follows the world size."
    )
    warmup_steps: WholeFromZero | None = Field(
        default=None, description="Steps in which the learning rate follows a scaled batch."
    )
    on_non_finite: NonFinite | None = Field(
        default=None, description="What to do about gradients that are not finite."
    )
    on_spike: Spike | None = Field(
        default=None, description="What to do when the value logged as `loss` jumps."
    )
    deterministic: Switch | None = Field(
        default=None, description="Only kernels that always give the same sums."
    )

    straggler_window: WholeFromZero | None = Field(
        default=None, description="Steps between comparisons of ranks' compute times; 0: never."
    )

    compression: GradientCompression | Method | None = Field(
        default=None, description="How replicas send gradients: a method, or one with its settings."
    )
    sync: WeightSync | SyncMethod | None = Field(
        default=None,
        description="Have ranks train on their own and exchange weights: a method, or a section.",
    )
    batch_shares: (
        Literal["even", "auto"]
        | Annotated[list[Annotated[float, Field(gt=0)]], Field(min_length=1)]
        | None
    ) = Field(
        default=None, description="Each rank's part of a batch: even, auto (by speed), or a list."
    )
    data_changed: Literal["refuse", "allow"] | None = Field(
        default=None, description="What to do about a resume on other data."
    )

    preflight: Preflight | None = Field(
        default=None, description="Whether ranks compare versions, devices and hosts at the start."
    )

    network: Network | None = Field(
        default=None, description="Variables of NCCL and gloo, by interconnect."
    )

    def given(self) -> dict[str, Any]:
        """What the spec says, and nothing else."""
        return self.model_dump(exclude_none=True)
