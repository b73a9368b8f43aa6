"""The spec's section `training`: what the training library is told, over the script's own arguments.

Only what is given travels; `phalanx.train.init` has the defaults.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from phalanx.schemas.spec_fields import Section, WholeFromOne, WholeFromZero


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

    strategy: Literal["ddp", "fsdp"] | None = Field(
        default=None, description="Whether ranks hold whole replicas, or shards of every parameter."
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
