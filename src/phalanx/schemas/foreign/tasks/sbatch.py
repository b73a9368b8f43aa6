"""Batch scripts of Slurm as job specs: the directives by a table, and what the script runs."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterator
from typing import Any

from phalanx.kit.units import parse_size
from phalanx.schemas.foreign.commands import (
    CommandPlan,
    is_state,
    logical_lines,
    raw_words,
    read_script,
    split_commands,
)
from phalanx.schemas.foreign.documents import ForeignDocument, Path
from phalanx.schemas.foreign.gangs import GangSize, gang, merged
from phalanx.schemas.foreign.needs import PodNeeds
from phalanx.schemas.foreign.reader import ForeignReader
from phalanx.schemas.foreign.rules import (
    ConversionLog,
    KeyAction,
    KeyRule,
    RuleTable,
    dropped,
    mapped,
    refused,
)
from phalanx.schemas.foreign.shell_text import ShellCommand, ShellValues, shell_commands
from phalanx.schemas.foreign.tasks.accelerate import launcher
from phalanx.schemas.spec.fields import MAX_NODES
from phalanx.schemas.spec.foreign_studies.reading import as_name

TOOL = "Slurm batch script"
DIRECTIVE = re.compile(r"(?m)^#SBATCH[ \t]")
_SHORT = {
    **{"N": "nodes", "n": "ntasks", "c": "cpus-per-task", "p": "partition", "A": "account"},
    **{"q": "qos", "J": "job-name", "t": "time", "o": "output", "e": "error", "D": "chdir"},
    **{"d": "dependency", "a": "array", "G": "gpus", "C": "constraint", "w": "nodelist"},
    **{"x": "exclude", "H": "hold", "L": "licenses", "m": "distribution", "b": "begin"},
    **{"i": "input", "k": "no-kill", "s": "oversubscribe", "W": "wait", "O": "overcommit"},
}
_BARE = frozenset(
    {"exclusive", "requeue", "no-requeue", "hold", "overcommit", "contiguous", "spread-job"}
    | {"wait", "oversubscribe", "no-kill", "reboot", "use-min-nodes", "get-user-env", "label"}
    | {"parsable", "no-container-mount-home", "container-writable", "container-mount-home"}
    | {
        "ignore-pbs",
        "unbuffered",
        "l",
        "u",
        "overlap",
        "verbose",
        "v",
        "quiet",
        "Q",
        "exact",
        "kill-on-bad-exit",
    }
)
_RULES: tuple[KeyRule, ...] = (
    *mapped("name", "job-name"),
    *mapped("resources.nodes", "nodes"),
    *mapped("ranks on each node", "ntasks", "ntasks-per-node", "ntasks-per-gpu"),
    *mapped("resources.slots_per_node", "gpus-per-node", "gpus", "gpus-per-task", "gres"),
    *mapped("resources.cpus", "cpus-per-task", "cpus-per-gpu"),
    *mapped("resources.memory", "mem", "mem-per-cpu", "mem-per-gpu"),
    *mapped("max_duration", "time"),
    *mapped("array", "array"),
    *mapped("grace", "signal"),
    *mapped("workdir", "chdir"),
    *mapped("env", "export"),
    *dropped("write `pool:`, `project:` and `priority:`", "partition", "account", "qos"),
    *dropped("write `pool:`, `project:` and `priority:`", "priority", "nice", "reservation"),
    *dropped("output is stored with the job: `phalanx logs`", "output", "error", "open-mode"),
    *dropped("Phalanx sends no mail", "mail-type", "mail-user"),
    *dropped("jobs restart by cause: `recovery`", "requeue", "no-requeue", "no-kill"),
    *dropped("slots are never shared", "exclusive", "oversubscribe", "overcommit"),
    *dropped("Phalanx places the ranks", "distribution", "cpu-bind", "gpu-bind", "mem-bind"),
    *dropped("Phalanx places the ranks", "contiguous", "spread-job", "switches", "hint"),
    *dropped(
        "Phalanx places the ranks", "ntasks-per-socket", "ntasks-per-core", "threads-per-core"
    ),
    *dropped("Phalanx places the ranks", "use-min-nodes", "tmp", "mincpus", "cores-per-socket"),
    *dropped("has no effect here", "comment", "wait", "get-user-env", "wckey", "profile", "quiet"),
    *dropped("has no effect here", "verbose", "acctg-freq", "gpu-freq", "network", "propagate"),
    *dropped("has no effect here", "export-file", "time-min", "deadline", "container-name"),
    *dropped("a gang starts as a whole", "wait-all-nodes", "kill-on-invalid-dep", "delay-boot"),
    *dropped("Phalanx places the ranks", "gres-flags", "gpus-per-socket", "sockets-per-node"),
    *dropped("Phalanx places the ranks", "core-spec", "thread-spec", "tres-bind", "segment"),
    *dropped("has no effect here", "parsable", "cpu-freq", "power", "mcs-label", "prefer"),
    *dropped("has no effect here", "no-container-mount-home", "container-writable"),
    *dropped("has no effect here", "container-mount-home", "ignore-pbs", "oom-kill-step"),
    *mapped("image", "container-image", of_image=True),
    *refused("file systems are mounted by their pool", "container-mounts", of_image=True),
    *refused("commands begin in the folder of the code", "container-workdir", of_image=True),
    *mapped("placement.selector", "constraint", of_image=True),
    *refused("select nodes with labels of a pool: `placement.selector`", "nodelist", of_image=True),
    *refused("select nodes with labels of a pool: `placement.selector`", "exclude", of_image=True),
    *refused("numbers of Slurm jobs are not known; use --depends-on j-12", "dependency"),
    *refused("a job cannot be submitted paused; use `phalanx pause`", "hold"),
    *refused("use `phalanx schedules create`", "begin"),
    *refused("not supported", "licenses", "clusters", "input", "bb", "bbf", "uid", "gid", "wrap"),
    *refused("not supported", "container", "reboot", "tres-per-task", "extra-node-info"),
)
TABLE = RuleTable(_RULES)
_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
# What finds the addresses and numbers of ranks: an assignment of them, or the output of such a command.
_ADDRESS = re.compile(
    r"^(export\s+)?(MASTER_ADDR|MASTER_PORT|RANK|WORLD_SIZE|LOCAL_RANK)="
    r"|^(scontrol|hostname)\b|^(export\s+)?\w+=[(\"'\s]*\$\(\s*(scontrol|hostname|srun)\b"
    r"|^(export\s+)?\w+=[^\s]*NODELIST"
)
# Commands that only report, and may be left out after the ranks.
_REPORTS = re.compile(
    r"(echo|printf|date|sleep|exit|wait|true|:|dcgmi|nvidia-smi|scontrol|sacct|seff|squeue|set)\b"
)
# Lines of a block that change nothing.
_HARMLESS = re.compile(
    r"(if|then|else|elif|fi|for|do|done|while|case|esac|echo|printf|true|:|#|\[|\{|\}|[^\s=]*\)|;;)(\s|;|$)|$"
)
_OUTPUT = re.compile(r"\s+(2>&1\s*)?\|\s*tee\s[^|;&]*$|(\s+(&>>?|[12]?>>?)\s*\S+|\s+2>&1)+\s*$")
# What `srun` gives to each task, from the variables of a rank.
_TASK = (
    "export SLURM_PROCID=$RANK SLURM_LOCALID=$LOCAL_RANK SLURM_NODEID=$GROUP_RANK "
    "SLURM_NTASKS=$WORLD_SIZE SLURM_NPROCS=$WORLD_SIZE SLURM_NNODES=$GROUP_WORLD_SIZE "
    "SLURM_JOB_NUM_NODES=$GROUP_WORLD_SIZE SLURM_NTASKS_PER_NODE=$LOCAL_WORLD_SIZE"
)


def read_directives(text: str, log: ConversionLog) -> ForeignDocument:
    """The directives of a script as a document with their lines; problems go to the log."""
    data: dict[str, Any] = {}
    lines: dict[Path, int] = {}
    commands = False
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if re.match(r"#(BB|DW)\b|#SBATCH\s+(hetjob|packjob)\b", line):
            log.refuse(
                number, shorten_line(line), "burst buffers and heterogeneous jobs: not supported"
            )
        elif DIRECTIVE.match(line):
            if commands:
                said = "stands after the first command: Slurm does not read it either"
                log.note(number, shorten_line(line), KeyAction.DROPPED, said)
                continue
            for option, value in _options(line[len("#SBATCH") :], number, log):
                data[option] = value
                lines[(option,)] = number
        elif stripped and not stripped.startswith("#"):
            commands = True
    return ForeignDocument(data, lines)


def shorten_line(line: str) -> str:
    """The beginning of a line, as the name of what stands there."""
    return line.strip()[:60]


def _options(text: str, number: int, log: ConversionLog) -> Iterator[tuple[str, str]]:
    try:
        words = shlex.split(text, comments=True)
    except ValueError as error:
        log.refuse(number, shorten_line(text), f"cannot be read: {str(error).lower()}")
        return
    at = 0
    while at < len(words):
        word, value = words[at], None
        if word.startswith("--"):
            name, equals, rest = word[2:].partition("=")
            value = rest if equals else None
        elif word.startswith("-") and len(word) > 1:
            name = _SHORT.get(word[1], word[1])
            value = word[2:].removeprefix("=") or None
        else:
            log.refuse(number, word, "is no option")
            return
        at += 1
        if value is None and name not in _BARE:
            if at >= len(words):
                log.refuse(number, name, "needs a value")
                return
            value, at = words[at], at + 1
        yield name, "true" if value is None else value


def convert_sbatch(reader: ForeignReader, text: str) -> dict[str, Any]:
    """The spec of a batch script, from its directives and its text. Problems go to the log."""
    log = reader.log
    nodes, elastic = _nodes(reader)
    tasks = _tasks(reader, nodes)
    needs = _needs(reader, nodes, tasks)
    known = {
        **dict.fromkeys(("SLURM_NNODES", "SLURM_JOB_NUM_NODES"), str(nodes)),
        **dict.fromkeys(("SLURM_NTASKS", "SLURM_NPROCS"), str(nodes * tasks)),
        "SLURM_NTASKS_PER_NODE": str(tasks),
        "SLURM_CPUS_PER_TASK": str(reader.value("cpus-per-task") or 1),
    }
    if needs.gpus:
        gpus = ("SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE")
        known |= dict.fromkeys(gpus, str(needs.gpus))
    plan = _plan(text, nodes, tasks, known, log)
    size = GangSize(reader.line_of("nodes"), nodes, elastic, tasks)
    spec: dict[str, Any] = {
        "schema": 1,
        "name": as_name(str(reader.value("job-name") or "job"), "job"),
    }
    return merged(merged(spec, gang(size, plan, needs, log)), _policy(reader))


def _nodes(reader: ForeignReader) -> tuple[int, tuple[int, int] | None]:
    text = str(reader.value("nodes") or "")
    low, dash, high = text.partition("-")
    if not text:
        return 1, None
    if not _digits(low) or (dash and not _digits(high)) or not 1 <= int(low) <= MAX_NODES:
        reader.refuse(
            "nodes", f"must be a number from 1 to {MAX_NODES}, or a range such as 2-4", text
        )
        return 1, None
    most = int(high) if dash else int(low)
    if not int(low) <= most <= MAX_NODES:
        reader.refuse("nodes", f"must be an ascending range up to {MAX_NODES}", text)
        return 1, None
    return most, (int(low), most) if most > int(low) else None


def _digits(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 7


def _tasks(reader: ForeignReader, nodes: int) -> int:
    """Tasks on each node."""
    each = reader.whole("ntasks-per-node", 1, 4096)
    total = reader.whole("ntasks", 1, MAX_NODES * 4096)
    if each is not None or total is None:
        return each or 1
    if total % nodes:
        reader.refuse("ntasks", f"must be a multiple of the {nodes} nodes", total)
    return max(total // nodes, 1)


def _needs(reader: ForeignReader, nodes: int, tasks: int) -> PodNeeds:
    needs = PodNeeds()
    for option, factor in (("gpus-per-node", 1.0), ("gpus-per-task", tasks), ("gpus", 1 / nodes)):
        if (found := _gpus(reader, option)) is not None:
            count, kind = found
            if (count * factor) % 1:
                reader.refuse(option, f"must be a multiple of the {nodes} nodes", count)
            needs.gpus, needs.accelerator = math.ceil(count * factor), kind or needs.accelerator
    for part in str(reader.value("gres") or "").split(","):
        words = part.removeprefix("gres/").split(":")
        if words[0] == "gpu" and len(words) <= 3:
            last = words[-1] if len(words) > 1 else "1"
            if len(words) == 3 or not _digits(last):
                needs.accelerator = words[1]
            needs.gpus = int(last) if _digits(last) else 1
        elif part:
            reader.refuse("gres", "only gpu, gpu:COUNT and gpu:TYPE:COUNT are supported", part)
    if reader.log.local:
        needs.accelerator = None
        return needs
    if (image := reader.value("container-image")) is not None:
        needs.image = str(image).replace("#", "/")
        reader.log.came_from(reader.line_of("container-image"), "image")
    needs.selector = _features(reader)
    each = reader.whole("cpus-per-task", 1, 4096)
    needs.cpus = None if each is None else each * tasks
    per_gpu = reader.whole("cpus-per-gpu", 1, 4096)
    if per_gpu is not None:
        needs.cpus = per_gpu * max(needs.gpus, 1)
    for option, factor in (
        ("mem", 1),
        ("mem-per-cpu", needs.cpus or tasks),
        ("mem-per-gpu", max(needs.gpus, 1)),
    ):
        amount = _memory(reader, option)
        needs.memory = amount * factor if amount else needs.memory
    return needs


def _features(reader: ForeignReader) -> dict[str, str]:
    """Features that every node must have, as labels: `gpu` is gpu=true, and `kind=a100` is itself."""
    text = reader.value("constraint")
    if text is None:
        return {}
    found: dict[str, str] = {}
    for feature in re.split("[&,]", str(text)):
        name, _, value = feature.strip().partition("=")
        if not _LABEL.fullmatch(name) or (value and not _LABEL.fullmatch(value)):
            said = (
                "only names joined by & are supported: each becomes a label that all nodes must have; "
                "write `placement.selector` in a job spec for others"
            )
            reader.refuse("constraint", said, text)
            return {}
        found[name] = value or "true"
    labels = ", ".join(f"{name}={value}" for name, value in found.items())
    said = f"placement.selector: nodes of a pool have the label {labels}"
    reader.note("constraint", KeyAction.MAPPED, said)
    reader.log.came_from(reader.line_of("constraint"), "placement.selector")
    return found


def _gpus(reader: ForeignReader, option: str) -> tuple[int, str | None] | None:
    text = reader.value(option)
    if text is None:
        return None
    kind, _, count = str(text).rpartition(":")
    if not _digits(count) or int(count) > 4096 * MAX_NODES:
        reader.refuse(option, "must be COUNT or TYPE:COUNT", text)
        return None
    return int(count), kind or None


def _memory(reader: ForeignReader, option: str) -> int | None:
    text = reader.value(option)
    if text is None:
        return None
    try:
        return parse_size(f"{text}M" if _digits(str(text)) else str(text))
    except ValueError:
        reader.refuse(option, "must be a size such as 64G; without a unit it is in MB", text)
        return None


def _plan(
    text: str, nodes: int, tasks: int, known: dict[str, str], log: ConversionLog
) -> CommandPlan:
    """What the script runs: the command of its one `srun`, or the script on a single node."""
    commands = []
    for one in _taken_apart(shell_commands(text)):
        if _is_address(one):
            said = "Phalanx sets the addresses and numbers of ranks"
            log.note(one.line, shorten_line(one.text), KeyAction.DROPPED, said)
        else:
            commands.append(one)
    starts = [n for n, one in enumerate(commands) if re.search(r"\bsrun\b", one.text)]
    first = commands[starts[0]].line if starts else 1
    log.came_from(first, "run", "setup")
    if not starts and nodes == 1:
        return _single("\n".join(one.text for one in commands), tasks, known, log)
    whole = CommandPlan(["bash", "-c", text])
    if len(starts) != 1:
        said = (
            "Slurm would run it on the first node only" if not starts else "write one job for each"
        )
        log.refuse(
            first, "srun", f"the script has {len(starts)} srun lines for {nodes} nodes: {said}"
        )
        return whole
    if commands[starts[0]].block:
        log.refuse(first, "srun", "must be a command outside of loops and conditions")
        return whole
    _after(commands[starts[0] + 1 :], log)
    before = commands[: starts[0]]
    return _srun(before, commands[starts[0]], tasks, known, log) or whole


def _taken_apart(commands: list[ShellCommand]) -> Iterator[ShellCommand]:
    """Commands that are separated by `;` apart, and the chain with `srun` as its parts."""
    for one in commands:
        if one.block or "\n" in one.text or ("srun" not in one.text and ";" not in one.text):
            yield one
        elif re.search(r"\bsrun\b", one.text) and not one.text.startswith("srun"):
            yield from (ShellCommand(one.line, part) for part in logical_lines(one.text))
        elif one.text.startswith("srun"):
            yield one
        else:
            for chain in split_commands(one.text):
                yield ShellCommand(one.line, " && ".join(chain))


def _is_address(one: ShellCommand) -> bool:
    """Whether a command only finds out what Phalanx sets."""
    if one.block or re.match(r"srun\b", one.text):
        return False
    return _ADDRESS.search(one.text) is not None


def _after(commands: list[ShellCommand], log: ConversionLog) -> None:
    """Commands after the ranks: those that only report are left out, others are refused."""
    for one in commands:
        if _REPORTS.match(one.text):
            said = "stands after srun: it does not run"
            log.note(one.line, shorten_line(one.text), KeyAction.DROPPED, said)
        else:
            said = (
                "commands after srun do not run: put them into the program, or into a second job with "
                "`depends_on`"
            )
            log.refuse(one.line, shorten_line(one.text), said)


def _before(commands: list[ShellCommand], log: ConversionLog) -> tuple[list[str], str | None]:
    """Commands that change the environment of each rank, and all of them where others are among them."""
    state, prepares = [], False
    for one in commands:
        inside = [line.strip() for line in one.text.splitlines()]
        plain = [line for line in inside if not _HARMLESS.match(line)]
        changes = [is_state(line) for line in plain]
        if not one.block and "\n" not in one.text:
            parts = [part for chain in split_commands(one.text) for part in chain]
            own = [part for part in parts if is_state(part)]
            state += [" && ".join(own)] if own else []
            prepares |= len(own) < len(parts) and bool(plain)
        elif (plain and all(changes)) if one.block else is_state(one.text):
            state.append(one.text)
        elif one.block and any(changes):
            said = (
                "sets variables and runs commands: write these one after the other, not in a block"
            )
            log.refuse(one.line, shorten_line(one.text), said)
        elif plain:
            prepares = True
    texts = [one.text for one in commands]
    return state, "\n".join(texts) if prepares else None


def _single(text: str, tasks: int, known: dict[str, str], log: ConversionLog) -> CommandPlan:
    plan = read_script(text, known, launcher(log))
    if not plan.launched and tasks > 1:
        plan.notes.append("has no srun: the script runs once, as under Slurm")
    if isinstance(plan.run, str):
        plan.run = ["bash", "-c", plan.run]
    return plan


def _srun(
    before: list[ShellCommand],
    start: ShellCommand,
    tasks: int,
    known: dict[str, str],
    log: ConversionLog,
) -> CommandPlan | None:
    text = re.sub(r"\\\n", " ", start.text)
    if (output := _OUTPUT.search(text)) is not None:
        said = "output is stored with the job: `phalanx logs`"
        log.note(start.line, output[0].strip()[:60], KeyAction.DROPPED, said)
        text = text[: output.start()]
    words = raw_words(text)
    if words is None or words[0] != "srun":
        said = "must be a command of its own, without pipes and redirections"
        log.refuse(start.line, "srun", said)
        return None
    values = ShellValues(known)
    for one in before:
        if not one.block:
            values.learn(one.text)
    command = _command(words, values, log, start.line)
    if not command:
        log.refuse(start.line, "srun", "names no command")
        return None
    plan = _launched(command, values, log) or CommandPlan(command, launched=True, ranks=tasks)
    state, plan.setup = _before(before, log)
    if any(re.match(r"module|ml\b|conda|micromamba", line) for line in state):
        plan.notes.append("loads modules or an environment: the nodes need them")
    assert isinstance(plan.run, list)
    plan.run = ["bash", "-c", "\n".join([_TASK, *state, f"exec {' '.join(plan.run)}"])]
    return plan


def _command(words: list[str], values: ShellValues, log: ConversionLog, line: int) -> list[str]:
    """The words after the flags of `srun`, which have no effect."""
    at = 1
    while at < len(words):
        filled = values.fill(words[at]).strip("\"'").strip()
        if words[at].startswith("$") and (not filled or filled.startswith(("-", "$"))):
            at += 1
        elif words[at].startswith("-"):
            name = words[at].lstrip("-")
            long = words[at].startswith("--")
            at += 1 if "=" in name or name in _BARE or (not long and len(name) > 1) else 2
        else:
            break
    if at > 1:
        flags = " ".join(words[1:at])
        log.note(line, f"srun {flags}"[:60], KeyAction.DROPPED, "the job's own numbers count")
    return words[at:]


def _launched(command: list[str], values: ShellValues, log: ConversionLog) -> CommandPlan | None:
    """The plan of a launcher, also one in a variable or in `bash -c`; None for any other command."""
    unwrap = launcher(log)
    line = values.fill(" ".join(command))
    inner = raw_words(line)
    if command[0] in ("bash", "sh") and len(command) == 3 and command[1] == "-c":
        text = values.fill(command[2])
        if text[:1] != '"' or text[-1:] != '"':
            return None
        line = re.sub(r"\\([$`\"\\])", r"\1", text[1:-1])
        inner = raw_words(line)
    plan = None if inner is None else unwrap(inner, values.values)
    return plan if plan is not None and isinstance(plan.run, list) else None


def _policy(reader: ForeignReader) -> dict[str, Any]:
    found: dict[str, Any] = {}
    limit = reader.value("time")
    if limit is not None:
        seconds = _duration_s(str(limit))
        if seconds is None:
            reader.refuse("time", "must be MINUTES, [HOURS:]MINUTES:SECONDS or DAYS-HOURS", limit)
        elif seconds:
            found["max_duration"] = f"{seconds}s"
    if (array := reader.value("array")) is not None:
        found["array"] = array
        reader.log.came_from(reader.line_of("array"), "array")
    if (signal := reader.value("signal")) is not None:
        _, at, seconds_text = str(signal).partition("@")
        if at and _digits(seconds_text):
            found["grace"] = f"{seconds_text}s"
            said = f"grace: ranks get SIGTERM, not {signal}, at a stop"
            reader.note("signal", KeyAction.MAPPED, said)
            reader.log.came_from(reader.line_of("signal"), "grace")
        else:
            reader.note("signal", KeyAction.DROPPED, "without a time: ranks get SIGTERM at a stop")
    if (folder := reader.value("chdir")) is not None:
        if str(folder).startswith(("/", "~", "$")):
            reader.refuse("chdir", "must be relative to the file: the folder is copied", folder)
        else:
            found["workdir"] = folder
    return {**found, "env": _exported(reader)}


def _exported(reader: ForeignReader) -> dict[str, str]:
    """Variables of `--export`."""
    env: dict[str, str] = {}
    for part in str(reader.value("export") or "").split(","):
        name, equals, value = part.partition("=")
        if equals:
            env[name] = value
        elif part not in ("", "ALL", "NONE", "NIL"):
            said = (
                f"{part} has no value: the environment of the shell is not sent; write {part}=VALUE"
            )
            reader.refuse("export", said)
    return env


def _duration_s(text: str) -> int | None:
    """Seconds of one of the six forms; 0 for no limit; None for anything else."""
    if text.upper() in ("0", "UNLIMITED", "INFINITE"):
        return 0
    found = re.fullmatch(
        r"(?:([0-9]{1,4})-)?([0-9]{1,6})(?::([0-9]{1,6}))?(?::([0-9]{1,6}))?", text
    )
    if found is None:
        return None
    days, first, second, third = (None if one is None else int(one) for one in found.groups())
    if days is not None:
        return days * 86_400 + (first or 0) * 3600 + (second or 0) * 60 + (third or 0)
    if third is not None:
        return (first or 0) * 3600 + (second or 0) * 60 + third
    return (first or 0) * 60 + (second or 0)
