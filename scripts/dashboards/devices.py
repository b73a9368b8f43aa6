"""The devices dashboard: use, memory, heat and power of accelerators.

Activity of the multiprocessors, PCIe and NVLink come from NVIDIA's own exporter: one program at a time may
read those counters.
"""

from __future__ import annotations

from dashboards.panels import RANK, TO_JOB, Board, Panel, jobs_of, one_of, rate, ratio

_DEVICE = "{{Hostname}} {{gpu}}"
_BY_JOB = "project, phalanx_job"


def _gauge(name: str) -> str:
    return one_of(jobs_of(name))


OF_RANKS = (
    Panel(
        "Utilisation",
        "Share of the time in which a kernel ran on the device of each rank. It says busy, not "
        "efficient: see the activity of multiprocessors below.",
        "percent",
        ((_gauge("gpu_utilization_percent"), RANK),),
        red_below=30,
        link=TO_JOB,
        most=100,
    ),
    Panel(
        "Mean utilisation",
        "Over all devices of the chosen jobs. Below 80 for long: the training dashboard has the "
        "shares of data and communication.",
        "percent",
        ((f"avg({_gauge('gpu_utilization_percent')})", "mean"),),
        kind="number",
        red_below=50,
        most=100,
    ),
    Panel(
        "Memory",
        "Memory in use on the device of each rank, by all processes. Much without a job's step: "
        "another process sits on the device; `phalanx exec` and nvidia-smi name it.",
        "mbytes",
        ((_gauge("gpu_memory_used_mb"), RANK),),
        link=TO_JOB,
    ),
    Panel(
        "Memory outside of the allocator",
        "Memory in use without the peak of torch's allocator. Large: contexts of other processes, "
        "libraries of collectives, or fragmentation.",
        "mbytes",
        ((f"{_gauge('gpu_memory_used_mb')} - {_gauge('gpu_memory_allocated_mb')}", RANK),),
        link=TO_JOB,
    ),
)

HEALTH = (
    Panel(
        "Temperature",
        "Temperature of each device. Red: the clock will be lowered; check fans and air flow of the "
        "node, and drain it with `phalanx nodes drain`.",
        "celsius",
        ((_gauge("phalanx_gpu_temperature_celsius"), RANK),),
        red_above=85,
        link=TO_JOB,
    ),
    Panel(
        "Hottest devices",
        "The ten hottest devices of the chosen jobs. One far above its neighbours: its cooler, not "
        "the load.",
        "celsius",
        ((f"topk(10, {_gauge('phalanx_gpu_temperature_celsius')})", RANK),),
        kind="bars",
        red_above=85,
        link=TO_JOB,
    ),
    Panel(
        "Power",
        "Power of each device. Low at a high utilisation: small kernels, or a device that waits for "
        "memory.",
        "watt",
        ((_gauge("phalanx_gpu_power_watts"), RANK),),
        link=TO_JOB,
    ),
    Panel(
        "Power by job",
        "Power of all devices of a job. It tells what a rack must deliver.",
        "watt",
        ((f"sum by ({_BY_JOB}) ({_gauge('phalanx_gpu_power_watts')})", "{{phalanx_job}}"),),
        kind="areas",
        link=TO_JOB,
    ),
    Panel(
        "Clock",
        "Clock of each device's multiprocessors. One far below its neighbours at the same load: it is too "
        "hot, or its power is limited; see the panel beside it.",
        "hertz",
        ((f"{_gauge('phalanx_gpu_clock_mhz')} * 1e6", RANK),),
        link=TO_JOB,
    ),
    Panel(
        "Throttled devices and memory errors",
        "1 while heat or the power supply lowers the clock of a device, and memory errors that it "
        "could not correct. Not 0: drain the node with `phalanx nodes drain`.",
        "short",
        (
            (_gauge("phalanx_gpu_throttled"), f"{RANK} throttled"),
            (_gauge("phalanx_gpu_ecc_errors"), f"{RANK} errors"),
        ),
        red_above=1,
        link=TO_JOB,
    ),
    Panel(
        "Energy by job",
        "Energy per second that the counters of a job's devices tell: exact, where power is a sample.",
        "watt",
        (
            (
                f"sum by ({_BY_JOB}) ({rate(jobs_of('phalanx_gpu_energy_joules_total'))})",
                "{{phalanx_job}}",
            ),
        ),
        kind="areas",
        link=TO_JOB,
    ),
    Panel(
        "Energy of a sample",
        "Power of a job's devices by its samples per second. Grows at the same code: devices wait "
        "more than before.",
        "joule",
        (
            (
                ratio(
                    f"sum by ({_BY_JOB}) ({_gauge('phalanx_gpu_power_watts')})",
                    f"sum by ({_BY_JOB}) ({rate(jobs_of('training_samples_total'))})",
                ),
                "{{phalanx_job}}",
            ),
        ),
        link=TO_JOB,
    ),
    Panel(
        "Devices that are not offered",
        "Unhealthy devices of each pool. Red: `phalanx nodes` names them.",
        "short",
        ((one_of("phalanx_pool_unhealthy_devices"), "{{pool}}"),),
        kind="number",
        red_above=1,
    ),
)

EXPORTER = (
    Panel(
        "Activity of multiprocessors",
        "Share of the time with a warp on a multiprocessor, from NVIDIA's exporter. Low at a high "
        "utilisation: small kernels; fuse them, compile the model, or use larger batches.",
        "percentunit",
        (("max without (instance, pod) (DCGM_FI_PROF_SM_ACTIVE)", _DEVICE),),
        red_below=0.3,
        most=1,
    ),
    Panel(
        "Activity of tensor cores",
        "Share of the time in which tensor cores worked. Near 0: the model runs in fp32; see mixed "
        "precision.",
        "percentunit",
        (("max without (instance, pod) (DCGM_FI_PROF_PIPE_TENSOR_ACTIVE)", _DEVICE),),
        most=1,
    ),
    Panel(
        "PCIe",
        "Bytes per second to and from each device. Near the speed of the slot: data is copied to the"
        " device too often, or gradients go over PCIe for want of NVLink.",
        "Bps",
        (
            ("max without (instance, pod) (DCGM_FI_PROF_PCIE_TX_BYTES)", f"{_DEVICE} sent"),
            ("max without (instance, pod) (DCGM_FI_PROF_PCIE_RX_BYTES)", f"{_DEVICE} received"),
        ),
    ),
    Panel(
        "NVLink",
        "Bytes per second over NVLink. 0 in a gang on one node: the ranks exchange over PCIe or the "
        "host; check the topology with nvidia-smi.",
        "Bps",
        (
            ("max without (instance, pod) (DCGM_FI_PROF_NVLINK_TX_BYTES)", f"{_DEVICE} sent"),
            ("max without (instance, pod) (DCGM_FI_PROF_NVLINK_RX_BYTES)", f"{_DEVICE} received"),
        ),
    ),
    Panel(
        "Errors of the driver",
        "Number of the newest XID error of each device. Not 0: NVIDIA's table of XID errors tells "
        "whether the node must be drained; 48, 63, 64, 79, 94 and 95 are of the hardware.",
        "short",
        (("max without (instance, pod) (DCGM_FI_DEV_XID_ERRORS)", _DEVICE),),
        kind="bars",
        red_above=1,
    ),
)

BOARD = Board(
    uid="phalanx-devices",
    title="Phalanx: devices",
    text="Use, memory, heat and power of accelerators. The last row needs NVIDIA's own exporter.",
    rows=(("Use and memory", OF_RANKS), ("Health", HEALTH), ("From NVIDIA's exporter", EXPORTER)),
    of_jobs=True,
)
