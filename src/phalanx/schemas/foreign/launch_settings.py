"""Settings of `accelerate launch` and the variables by which its processes learn them."""

from __future__ import annotations

_PLAIN = {
    "use_cpu": ("ACCELERATE_USE_CPU", "true"),
    "cpu": ("ACCELERATE_USE_CPU", "true"),
    "debug": ("ACCELERATE_DEBUG_MODE", "true"),
    "enable_cpu_affinity": ("ACCELERATE_CPU_AFFINITY", "1"),
    "use_fsdp": ("ACCELERATE_USE_FSDP", "true"),
    "use_deepspeed": ("ACCELERATE_USE_DEEPSPEED", "true"),
    "use_megatron_lm": ("ACCELERATE_USE_MEGATRON_LM", "true"),
    "use_parallelism_config": ("ACCELERATE_USE_PARALLELISM_CONFIG", "true"),
}
SWITCHES = frozenset(_PLAIN)
"""Flags of `accelerate launch` without a value that set a variable."""
_DEEPSPEED = {
    "deepspeed_config_file": "ACCELERATE_DEEPSPEED_CONFIG_FILE",
    "zero_stage": "ACCELERATE_DEEPSPEED_ZERO_STAGE",
    "gradient_accumulation_steps": "ACCELERATE_GRADIENT_ACCUMULATION_STEPS",
    "gradient_clipping": "ACCELERATE_GRADIENT_CLIPPING",
    "offload_optimizer_device": "ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE",
    "offload_param_device": "ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE",
    "offload_optimizer_nvme_path": "ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_NVME_PATH",
    "offload_param_nvme_path": "ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_NVME_PATH",
    "zero3_init_flag": "ACCELERATE_DEEPSPEED_ZERO3_INIT",
    "zero3_save_16bit_model": "ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL",
    "deepspeed_moe_layer_cls_names": "ACCELERATE_DEEPSPEED_MOE_LAYER_CLS_NAMES",
}
_DEEPSPEED_LAUNCH = frozenset(
    {"deepspeed_multinode_launcher", "deepspeed_hostfile", "deepspeed_inclusion_filter"}
    | {"deepspeed_exclusion_filter"}
)
_RENAMED = {"FSDP_TRANSFORMER_LAYER_CLS_TO_WRAP": "FSDP_TRANSFORMER_CLS_TO_WRAP"}
_PREFIXES = ("fsdp_", "megatron_lm_", "parallelism_config_", "dynamo_")


def accelerate_variable(section: str, key: str, value: str) -> dict[str, str] | None:
    """The variable of a setting, none for one of the launcher itself, and None for one not known.

    `section` is that of the configuration, such as `fsdp`, or empty for flags and keys of the top level.
    """
    if not section and key in _PLAIN:
        name, stands = _PLAIN[key]
        return {name: stands}
    if key in _DEEPSPEED:
        return {_DEEPSPEED[key]: value}
    if key in _DEEPSPEED_LAUNCH:
        return {}
    full = key if not section or key.startswith(f"{section}_") else f"{section}_{key}"
    if not full.startswith(_PREFIXES) or not full.replace("_", "").isalnum():
        return None
    upper = full.upper()
    if full.startswith("dynamo_"):
        upper = f"ACCELERATE_{upper}"
        value = value.upper() if full == "dynamo_backend" else value
    return {_RENAMED.get(upper, upper): value}
