"""Configurations of Hugging Face Accelerate as job specs; the program comes from `--set PROGRAM=…`."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from phalanx.errors import SpecInvalid
from phalanx.schemas.foreign.commands import CommandPlan, Unwrap, unwrapped
from phalanx.schemas.foreign.documents import read_documents
from phalanx.schemas.foreign.gangs import GangSize, gang, merged
from phalanx.schemas.foreign.launch_settings import accelerate_variable
from phalanx.schemas.foreign.needs import PodNeeds
from phalanx.schemas.foreign.reader import ForeignReader
from phalanx.schemas.foreign.rules import (
    PROGRAM,
    ConversionLog,
    RuleTable,
    dropped,
    mapped,
    refused,
)
from phalanx.schemas.spec.fields import MAX_NODES

TOOL = "Accelerate configuration"
_NO_TPU = "TPUs are not supported"
_SAGEMAKER = "SageMaker is not supported: submit the program itself"
TABLE = RuleTable(
    (
        *mapped("the format", "compute_environment", "distributed_type"),
        *mapped("resources.nodes", "num_machines"),
        *mapped("resources.slots_per_node", "num_processes"),
        *mapped("env", "mixed_precision", "use_cpu", "debug", "enable_cpu_affinity"),
        *mapped("env", "fsdp_config", "deepspeed_config", "megatron_lm_config"),
        *mapped("env", "parallelism_config", "dynamo_config"),
        *refused("write it in the program: FP8RecipeKwargs", "fp8_config"),
        *refused("use a job spec with `framework: mpi`", "mpirun_config"),
        *dropped("Phalanx connects the ranks itself", "machine_rank", "main_process_ip"),
        *dropped("Phalanx connects the ranks itself", "main_process_port", "rdzv_backend"),
        *dropped("Phalanx connects the ranks itself", "same_network"),
        *dropped("slots are those of the placement", "gpu_ids"),
        *dropped("is for TPUs and notebooks", "main_training_function", "downcast_bf16"),
        *dropped("is for TPUs and notebooks", "tpu_use_cluster", "tpu_use_sudo", "tpu_env"),
        *refused(_NO_TPU, "tpu_name", "tpu_zone", "tpu_vm", "command_file", "commands"),
        *refused(_SAGEMAKER, "ec2_instance_type", "iam_role_name", "image_uri", "profile"),
        *refused(_SAGEMAKER, "region", "base_job_name", "pytorch_version", "py_version"),
        *refused(_SAGEMAKER, "transformers_version", "sagemaker_inputs_file", "additional_args"),
        *refused(_SAGEMAKER, "sagemaker_metrics_file"),
    )
)
_TYPES = (
    *("NO", "MULTI_GPU", "MULTI_CPU", "MULTI_XPU", "MULTI_NPU", "MULTI_MLU", "MULTI_MUSA"),
    *("MULTI_HPU", "MULTI_SDAA", "MULTI_NEURON", "FSDP", "DEEPSPEED", "MEGATRON_LM"),
)
_SECTIONS = {
    "fsdp_config": "fsdp",
    "deepspeed_config": "deepspeed",
    "megatron_lm_config": "megatron_lm",
    "parallelism_config": "parallelism_config",
    "dynamo_config": "dynamo",
}


def is_accelerate(data: dict[str, Any]) -> bool:
    """Whether a document is a configuration of Accelerate."""
    return "run" not in data and (
        "distributed_type" in data
        or "compute_environment" in data
        or {"mixed_precision", "num_processes"} <= set(data)
    )


def convert_accelerate(document: ForeignReader) -> dict[str, Any]:
    """The spec of a configuration. Problems go to the log of the reader."""
    log = document.log
    kind = _kind(document)
    nodes = document.whole("num_machines", 1, MAX_NODES) or 1
    total = document.whole("num_processes", -1, 10**7)
    needs = PodNeeds(env=_variables(document, kind))
    plan = CommandPlan(program_of(document), launched=True)
    plan.total_ranks = total if total is not None and total > 0 else None
    line = document.line_of("num_processes")
    log.came_from(line, "env", "run")
    return merged({"schema": 1, "name": "job"}, gang(GangSize(line, nodes), plan, needs, log))


def _kind(document: ForeignReader) -> str:
    """The type of distribution in capitals; one that is not supported is refused, as is its place."""
    kind = document.value("distributed_type")
    if kind in ("XLA", "TPU"):
        document.refuse("distributed_type", _NO_TPU, kind)
    elif kind is not None and str(kind).upper() not in (*_TYPES, "FALSE"):
        document.refuse("distributed_type", f"must be one of {', '.join(_TYPES)}", kind)
    place = document.value("compute_environment")
    if place not in (None, "LOCAL_MACHINE"):
        said = _SAGEMAKER if place == "AMAZON_SAGEMAKER" else "must be LOCAL_MACHINE"
        document.refuse("compute_environment", said, place)
    return str(kind).upper()


def launcher(log: ConversionLog) -> Unwrap:
    """Reads words of launchers, with the configuration files of Accelerate in the folder of the file."""

    def read(words: list[str], env: Mapping[str, str]) -> CommandPlan | None:
        return unwrapped(words, env, lambda name: _from_file(name, log))

    return read


def _from_file(name: str, log: ConversionLog) -> CommandPlan | None:
    """What a configuration file says; None where it is not there, or has problems of its own."""
    text = log.read_file(name) if log.read_file is not None else None
    if text is None:
        return None
    inner = ConversionLog(name, log.local)
    try:
        documents = read_documents(text, name)
    except SpecInvalid:
        return None
    if len(documents) != 1:
        return None
    TABLE.walk(documents[0], inner)
    reader = ForeignReader(documents[0], inner)
    env = _variables(reader, _kind(reader))
    nodes = reader.whole("num_machines", 1, MAX_NODES)
    total = reader.whole("num_processes", -1, 10**7)
    if inner.problems:
        return None
    plan = CommandPlan([], launched=True, env=env)
    plan.nodes = None if nodes is None else (nodes, nodes)
    plan.total_ranks = total if total is not None and total > 0 else None
    return plan


def program_of(document: ForeignReader) -> list[str]:
    """The words of `--set PROGRAM=…`; refused without it."""
    text = document.log.given(PROGRAM)
    try:
        words = shlex.split(text or "")
    except ValueError as error:
        document.log.refuse(document.line, PROGRAM, f"cannot be read: {str(error).lower()}")
        return ["python"]
    if not words:
        said = f"the file names no program; add --set {PROGRAM}='train.py ARGUMENTS'"
        document.log.refuse(document.line, "the file", said)
    if words and words[0].endswith(".py"):
        return ["python", "-u", *words]
    return ["python", "-u", *words] if words[:1] == ["-m"] else words or ["python"]


def _variables(document: ForeignReader, kind: str) -> dict[str, str]:
    """The variables that `accelerate launch` sets for each process."""
    env: dict[str, str] = {}
    precision = document.value("mixed_precision")
    if precision is not None and precision is not False:
        if precision not in ("no", "fp16", "bf16", "fp8"):
            document.refuse("mixed_precision", "must be no, fp16, bf16 or fp8", precision)
        env["ACCELERATE_MIXED_PRECISION"] = str(precision)
    for key in ("use_cpu", "debug", "enable_cpu_affinity"):
        found = document.value(key)
        if found is True:
            env |= accelerate_variable("", key, "true") or {}
        elif found not in (None, False):
            document.refuse(key, "must be true or false", found)
    for section, prefix in _SECTIONS.items():
        env |= _section(document, section, prefix)
    uses = {"FSDP": "FSDP", "DEEPSPEED": "DEEPSPEED", "MEGATRON_LM": "MEGATRON_LM"}
    for name, word in uses.items():
        if kind == name:
            env[f"ACCELERATE_USE_{word}"] = "true"
    if document.mapping("parallelism_config"):
        env["ACCELERATE_USE_PARALLELISM_CONFIG"] = "true"
    return env


def _section(document: ForeignReader, section: str, prefix: str) -> dict[str, str]:
    """Variables of one section, such as `fsdp_config`."""
    env: dict[str, str] = {}
    for key, value in document.mapping(section).items():
        one = accelerate_variable(prefix, key, _text(value))
        if one is None or isinstance(value, dict):
            said = "unknown setting; remove it, or set it in the program"
            document.at(section).refuse(key, said)
        elif value is not None:
            env |= one
    return env


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return ",".join(map(str, value))
    return str(value)
