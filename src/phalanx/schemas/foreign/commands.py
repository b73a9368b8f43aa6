"""Command lines of other launchers: what they start, with how many processes, and what else they say."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from phalanx.schemas.foreign.launch_settings import SWITCHES, accelerate_variable

_PYTHON = re.compile(r"(?:.*/)?python(?:3(?:\.[0-9]+)?)?")
_VARIABLE = re.compile(r"\$\{?([A-Za-z_][A-Za-z0-9_]*)\}?")
_ASSIGNMENT = re.compile(r"(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)=(\S*|\"[^\"]*\"|'[^']*')\s*")
_CONTROL = re.compile(r"(?:if|for|while|until|case|function|select|\{|\(|\S+\s*\(\))(?:\s|$)|.*<<")
_STATE = re.compile(
    r"(?:export|cd|source|\.|module|ml|conda|micromamba|mamba|ulimit|set|unset|eval|umask|alias|shopt)\s"
    r"|[A-Za-z_][A-Za-z0-9_]*="
)
_INSIDE = "has a launcher inside other commands: the text runs once on each node as it is"
_SHELLS = ("sh", "bash", "/bin/sh", "/bin/bash", "/usr/bin/bash", "/usr/bin/sh")
_VALUED = frozenset(
    {"nnodes", "nproc_per_node", "node_rank", "master_addr", "master_port", "rdzv_backend"}
    | {"rdzv_endpoint", "rdzv_id", "rdzv_conf", "max_restarts", "monitor_interval", "start_method"}
    | {"role", "log_dir", "local_addr", "tee", "redirects", "local_ranks_filter"}
)
_BARE = frozenset({"standalone", "module", "no_python", "use_env"})
_SHORT = {"m": "module", "t": "tee", "r": "redirects"}
_ACCELERATE_VALUED = frozenset(
    {"num_machines", "num_processes", "machine_rank", "main_process_ip", "main_process_port"}
    | {"rdzv_backend", "rdzv_conf", "max_restarts", "monitor_interval", "mixed_precision"}
    | {"num_cpu_threads_per_process", "gpu_ids", "role", "tee", "log_dir", "config_file"}
)
_ACCELERATE_BARE = (
    frozenset({"multi_gpu", "same_network", "module", "no_python", "quiet"})
    | {"dynamo_use_fullgraph", "dynamo_use_dynamic", "dynamo_use_regional_compilation"}
    | SWITCHES
)
_FABRIC_VALUED = frozenset(
    {"accelerator", "strategy", "devices", "num_nodes", "node_rank", "main_address", "main_port"}
    | {"precision"}
)


@dataclass(slots=True)
class CommandPlan:
    """What a command line starts on each node. Without `launched` it runs once on each node."""

    #: words, or a text for the shell
    run: list[str] | str
    #: a launcher was replaced by its program
    launched: bool = False
    #: processes on each node: None where the line does not say, 0 for as many as GPUs
    ranks: int | None = None
    #: processes in all
    total_ranks: int | None = None
    #: least and most nodes
    nodes: tuple[int, int] | None = None
    #: restarts of the launcher
    restarts: int | None = None
    #: `framework` of the spec, where the launcher decides about it
    framework: str | None = None
    #: what runs once on each node before
    setup: str | None = None
    #: variables that the launcher sets
    env: dict[str, str] = field(default_factory=dict)
    #: what has no effect, or could not be told
    notes: list[str] = field(default_factory=list)


Unwrap = Callable[[list[str], Mapping[str, str]], CommandPlan | None]
"""Reads the words of a command with the variables that are known; None where it is no launcher."""
ReadConfig = Callable[[str], CommandPlan | None]
"""Reads a configuration file by its name; None where there is no such file, or it cannot be used."""


def read_words(
    words: Sequence[str], env: Mapping[str, str], unwrap: Unwrap | None = None
) -> CommandPlan:
    """The plan of a command without a shell, or of `sh -c TEXT`.

    `unwrap` reads the words of a launcher; the default reads those of torchrun, accelerate and fabric.
    """
    if len(words) >= 3 and words[0] in _SHELLS:
        flags = [one for one in words[1:-1] if one.startswith("-")]
        if len(flags) == len(words) - 2 and flags[-1].endswith("c"):
            plan = read_script(words[-1], env, unwrap)
            if isinstance(plan.run, str) and not plan.launched:
                plan.run = list(words)
            return plan
    return (unwrap or unwrapped)(list(words), env) or CommandPlan(list(words))


def read_script(text: str, env: Mapping[str, str], unwrap: Unwrap | None = None) -> CommandPlan:
    """The plan of a text for the shell.

    Where its last command is a launcher, the lines before run once per node, and those that change the
    environment run in every rank as well.
    """
    lines = logical_lines(text)
    whole = CommandPlan(text)
    known = dict(env)
    for line in lines:
        found = _ASSIGNMENT.fullmatch(line)
        if found is not None and "$" not in found[2]:
            known[found[1]] = found[2].strip("\"'")
    unwrap = unwrap or unwrapped
    launchers = [n for n, line in enumerate(lines) if _launch_of(line, known, unwrap) is not None]
    if not launchers:
        if re.search(r"\b(torchrun|torch\.distributed\.(run|launch)|accelerate launch)\b", text):
            whole.notes.append(_INSIDE)
        return whole
    if len(launchers) > 1:
        whole.notes.append("has several launcher lines: the text runs once on each node as it is")
        return whole
    unclear = any(is_control(line) for line in lines)
    if launchers[0] != len(lines) - 1 or unclear:
        whole.notes.append(_INSIDE)
        return whole
    plan = _launch_of(lines[-1], known, unwrap)
    assert plan is not None
    before = lines[:-1]
    state = [line for line in before if is_state(line)]
    if len(state) < len(before):
        plan.setup = "\n".join(before)
    assert isinstance(plan.run, list)
    line = " ".join(plan.run)
    if not state and not re.search(r"[$`*?~\[\]{}<>&|;!#]", line):
        plan.run = shlex.split(line)
    else:
        plan.run = "\n".join([*state, f"exec {line}"])
    return plan


def logical_lines(text: str) -> list[str]:
    """Commands of a shell text without comments and blank lines, continued lines joined.

    A chain with `&&` stays one command, so that nothing runs after one that failed. The last chain is
    taken apart: its last command is what the text starts, and those before it end the text when they fail.
    """
    joined = re.sub(r"\\\n[ \t]*", " ", text)
    stripped = (line.strip() for line in joined.splitlines())
    chains = [
        chain
        for line in stripped
        if line and not line.startswith("#")
        for chain in split_commands(line)
    ]
    found: list[str] = []
    for chain in chains[:-1]:
        found += chain if all(is_state(one) for one in chain) else [" && ".join(chain)]
    for chain in chains[-1:]:
        found += [*(f"{one} || exit" for one in chain[:-1]), chain[-1]]
    return found


def is_control(line: str) -> bool:
    """Whether a line is part of a loop, condition or other construct of several lines."""
    return _CONTROL.match(line) is not None or not _closed(line)


def is_state(line: str) -> bool:
    """Whether a line changes the environment of the lines after it."""
    return _STATE.match(line) is not None


def _closed(line: str) -> bool:
    """Whether every quote of a line is closed on it."""
    try:
        shlex.split(line)
    except ValueError:
        return False
    return True


def split_commands(line: str) -> list[list[str]]:
    """Commands of a line that are separated by `;`, each as its parts between `&&`."""
    found: list[list[str]] = [[""]]
    quote, at = "", 0
    while at < len(line):
        char = line[at]
        here = found[-1][-1]
        if quote:
            quote = "" if char == quote else quote
        elif char in "\"'":
            quote = char
        elif char == "#" and (not here or here[-1].isspace()):
            break
        elif char == ";":
            found.append([""])
            at += 1
            continue
        elif line.startswith("&&", at):
            found[-1].append("")
            at += 2
            continue
        found[-1][-1] += char
        at += 1
    chains = ([part.strip() for part in chain if part.strip()] for chain in found)
    return [chain for chain in chains if chain]


def _launch_of(line: str, env: Mapping[str, str], unwrap: Unwrap) -> CommandPlan | None:
    """The plan of a line that is one launcher command; words keep their quotes."""
    words = raw_words(line)
    if words is None:
        return None
    if words[:1] == ["exec"]:
        words = words[1:]
    while words and _ASSIGNMENT.fullmatch(words[0]):
        words = words[1:]
    if words[0:1] == ["srun"]:
        return None
    plan = unwrap(words, env)
    if plan is not None and isinstance(plan.run, list):
        first = raw_words(line) or []
        prefix = [one for one in first[: len(first) - len(words)] if one != "exec"]
        plan.run = [*(["env", *prefix] if prefix else []), *plan.run]
    return plan


def raw_words(line: str) -> list[str] | None:
    """Words of one command with their quotes; None for pipes, redirections and lists of commands."""
    words: list[str] = []
    here, quote, escaped, depth = "", "", False, 0
    for char in line:
        if escaped:
            escaped = False
        elif char == "\\" and quote != "'":
            escaped = True
        elif quote:
            quote = "" if char == quote else quote
        elif char in "\"'":
            quote = char
        elif depth or (char == "(" and here.endswith("$")):
            depth += (char == "(") - (char == ")")
        elif char in "|&;<>`":
            return None
        elif char == "#" and not here:
            break
        elif char.isspace():
            words += [here] if here else []
            here = ""
            continue
        here += char
    if quote or escaped or depth:
        return None
    return words + ([here] if here else [])


def unwrapped(
    words: list[str], env: Mapping[str, str], config: ReadConfig | None = None
) -> CommandPlan | None:
    """The plan of a launcher's words; None for any other command, and for flags that are not read.

    `config` reads a configuration file of Accelerate; without it, a command that names one is not read.
    """
    python = "python"
    if len(words) > 2 and _PYTHON.fullmatch(words[0]):
        at = 1
        while at < len(words) and words[at] in ("-u", "-O", "-B", "-I"):
            at += 1
        if words[at : at + 1] != ["-m"] or len(words) <= at + 1:
            return None
        python, module, rest = words[0], words[at + 1], words[at + 2 :]
        if module in ("torch.distributed.run", "torch.distributed.launch"):
            return _torchrun(rest, env, python)
        return (
            _accelerate(rest, env, python, config)
            if module == "accelerate.commands.launch"
            else None
        )
    if words and words[0].rpartition("/")[2] == "torchrun":
        return _torchrun(words[1:], env, python)
    if words[:2] == ["accelerate", "launch"]:
        return _accelerate(words[2:], env, python, config)
    if words[:2] == ["fabric", "run"]:
        return _fabric(words[2:], env)
    return None


def _flags(
    words: list[str], valued: Callable[[str], bool], bare: frozenset[str]
) -> tuple[dict[str, str], list[str]] | None:
    """Flags before the program, and the program's words; None for a flag that is not known."""
    found: dict[str, str] = {}
    at = 0
    while at < len(words) and words[at].startswith("-") and words[at] != "--":
        name, equals, value = words[at].lstrip("-").partition("=")
        name = _SHORT.get(name, name) if not words[at].startswith("--") else name
        name = name.replace("-", "_")
        if name in bare and not equals:
            found[name] = "true"
        elif valued(name) and (equals or at + 1 < len(words)):
            found[name] = value if equals else words[at + 1]
            at += 0 if equals else 1
        else:
            return None
        at += 1
    rest = words[at + 1 :] if words[at : at + 1] == ["--"] else words[at:]
    return (found, rest) if rest else None


def number(text: str | None, env: Mapping[str, str], plan: CommandPlan, flag: str) -> int | None:
    """A whole number of a flag, with variables filled in; None where it cannot be told."""
    if text is None:
        return None
    value = _VARIABLE.sub(lambda one: env.get(one[1], one[0]), text.strip("\"'"))
    if value.isascii() and value.isdigit() and len(value) < 7:
        return int(value)
    plan.notes.append(f"{flag}={text} is no number here; the numbers of the file are used")
    return None


def _program(flags: Mapping[str, str], rest: list[str], python: str) -> list[str]:
    if "no_python" in flags:
        return rest
    return [python, "-u", *(["-m"] if "module" in flags else []), *rest]


def _torchrun(words: list[str], env: Mapping[str, str], python: str) -> CommandPlan | None:
    read = _flags(words, _VALUED.__contains__, _BARE)
    if read is None:
        return None
    flags, rest = read
    plan = CommandPlan(_program(flags, rest, python), launched=True)
    ranks = flags.get("nproc_per_node", "")
    if ranks in ("auto", "gpu"):
        plan.ranks = 0
    else:
        plan.ranks = number(ranks or None, env, plan, "--nproc-per-node")
    if ":" in flags.get("nnodes", ""):
        low, _, high = flags["nnodes"].partition(":")
        first = number(low, env, plan, "--nnodes")
        last = number(high, env, plan, "--nnodes")
        plan.nodes = None if first is None or last is None else (first, last)
    elif "nnodes" in flags and "standalone" not in flags:
        count = number(flags["nnodes"], env, plan, "--nnodes")
        plan.nodes = None if count is None else (count, count)
    plan.restarts = number(flags.get("max_restarts"), env, plan, "--max-restarts")
    dropped = sorted(set(flags) & (_VALUED - {"nnodes", "nproc_per_node", "max_restarts"}))
    if dropped:
        plan.notes.append(f"flags of the launcher that have no effect: {', '.join(dropped)}")
    return plan


def _accelerate_value(name: str) -> bool:
    """Whether a flag of `accelerate launch` has a value."""
    known = name in _ACCELERATE_VALUED or accelerate_variable("", name, "") is not None
    return known and name not in _ACCELERATE_BARE


def _accelerate(
    words: list[str], env: Mapping[str, str], python: str, config: ReadConfig | None
) -> CommandPlan | None:
    read = _flags(words, _accelerate_value, _ACCELERATE_BARE)
    if read is None:
        return None
    flags, rest = read
    file = flags.get("config_file")
    base = None if file is None or config is None else config(file.strip("\"'"))
    if file is not None and base is None:
        return None
    plan = base or CommandPlan([], launched=True)
    plan.run = _program(flags, rest, python)
    if "num_processes" in flags:
        plan.total_ranks = number(flags["num_processes"], env, plan, "--num_processes")
    if "num_machines" in flags:
        count = number(flags["num_machines"], env, plan, "--num_machines")
        plan.nodes = None if count is None else (count, count)
    plan.restarts = number(flags.get("max_restarts"), env, plan, "--max_restarts")
    if "mixed_precision" in flags:
        plan.env["ACCELERATE_MIXED_PRECISION"] = flags["mixed_precision"]
    if "num_cpu_threads_per_process" in flags:
        plan.env["OMP_NUM_THREADS"] = flags["num_cpu_threads_per_process"]
    for name, value in flags.items():
        plan.env |= accelerate_variable("", name, value.strip("\"'")) or {}
    return plan


def _fabric(words: list[str], env: Mapping[str, str]) -> CommandPlan | None:
    read = _flags(words, _FABRIC_VALUED.__contains__, frozenset())
    if read is None:
        return None
    flags, rest = read
    plan = CommandPlan(["python", "-u", *rest], launched=True)
    plan.ranks = number(flags.get("devices"), env, plan, "--devices")
    count = number(flags.get("num_nodes"), env, plan, "--num-nodes")
    plan.nodes = None if count is None else (count, count)
    plan.env["LT_CLI_USED"] = "1"
    for name in ("accelerator", "strategy", "devices", "num_nodes", "precision"):
        if name in flags:
            plan.env[f"LT_{name.upper()}"] = flags[name]
    return plan
