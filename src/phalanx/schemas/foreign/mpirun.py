"""Command lines of `mpirun`, `mpiexec` and `horovodrun`: the program, its processes and settings."""

from __future__ import annotations

from collections.abc import Mapping

from phalanx.schemas.foreign.commands import CommandPlan, number

_COUNT = frozenset({"np", "n", "c"})
_EACH = frozenset({"N", "npernode"})
_HOSTS = frozenset({"H", "host", "hosts", "hostfile", "machinefile", "default-hostfile"})
_VALUED = _HOSTS | frozenset(
    {"bind-to", "map-by", "rank-by", "output-filename", "prefix", "timeout", "am", "tune"}
    | {"cpus-per-proc", "cpus-per-rank", "launch-agent", "personality", "stdin", "max-restarts"}
)
_BARE = frozenset(
    {"allow-run-as-root", "report-bindings", "tag-output", "oversubscribe", "nooversubscribe"}
    | {"v", "verbose", "q", "quiet", "display-map", "display-allocation", "timestamp-output"}
    | {"merge-stderr-to-stdout", "bycore", "bynode", "byslot", "bysocket", "bind-to-core"}
    | {"bind-to-none", "bind-to-socket", "use-hwthread-cpus", "nolocal", "report-state-on-timeout"}
    | {"get-stack-traces", "do-not-launch", "enable-recovery", "disable-recovery", "d"}
)
_MCA = frozenset({"mca", "gmca", "prtemca"})
_HOROVOD_VALUED = frozenset(
    {"p", "ssh-port", "H", "hosts", "hostfile", "network-interface", "nics", "start-timeout"}
    | {"i", "ssh-identity-file", "output-filename", "log-level", "min-np", "max-np"}
)
_HOROVOD_BARE = frozenset({"gloo", "mpi", "verbose", "disable-cache", "use-gloo", "use-mpi"})
# Settings of the way from `mpirun` to the other nodes, on which Phalanx starts the processes itself.
_OF_LAUNCH = ("plm_", "orte_", "prte_", "routed", "ras_", "rmaps_", "btl_tcp_if", "oob_tcp_if")


def unwrapped_mpi(words: list[str], env: Mapping[str, str]) -> CommandPlan | None:
    """The plan of an `mpirun` or `horovodrun` command; None for any other, and for flags not read."""
    tool = words[0].rpartition("/")[2] if words else ""
    if tool in ("mpirun", "mpiexec", "orterun"):
        return _mpirun(words[1:], env)
    return _horovodrun(words[1:], env) if tool == "horovodrun" else None


def _mpirun(words: list[str], env: Mapping[str, str]) -> CommandPlan | None:
    plan = CommandPlan([], launched=True, framework="mpi")
    unread: list[str] = []
    at = 0
    while at < len(words) and words[at].startswith("-") and words[at] != "--":
        name, equals, inline = words[at].lstrip("-").partition("=")
        more = words[at + 1 : at + 3]
        if name in _BARE and not equals:
            at += 1
            continue
        if name in _MCA and len(more) == 2:
            _setting(more[0], more[1], plan)
            at += 3
            continue
        value = inline if equals else more[0] if more else None
        if value is None or not _take(name, value, env, plan, unread):
            return None
        at += 1 if equals else 2
    return _finished(plan, words[at:], unread)


def _take(
    name: str, value: str, env: Mapping[str, str], plan: CommandPlan, unread: list[str]
) -> bool:
    """Take a flag with its value; False for one that is not read."""
    if name in _COUNT:
        plan.total_ranks = number(value, env, plan, f"-{name}")
    elif name in _EACH:
        plan.ranks = number(value, env, plan, f"-{name}")
    elif name == "x":
        variable, equals, given = value.strip("\"'").partition("=")
        if equals:
            plan.env[variable] = given
        else:
            unread.append(f"x {variable}")
    elif name in _VALUED:
        unread.append(name)
    else:
        return False
    return True


def _setting(name: str, value: str, plan: CommandPlan) -> None:
    """A parameter of Open MPI, as the variable that sets it too."""
    if name.startswith(_OF_LAUNCH):
        plan.notes.append(f"the setting {name} of mpirun has no effect: it uses no ssh here")
    else:
        plan.env[f"OMPI_MCA_{name}"] = value.strip("\"'")


def _horovodrun(words: list[str], env: Mapping[str, str]) -> CommandPlan | None:
    plan = CommandPlan([], launched=True, framework="horovod")
    unread: list[str] = []
    at = 0
    while at < len(words) and words[at].startswith("-") and words[at] != "--":
        name, equals, value = words[at].lstrip("-").partition("=")
        if name in _HOROVOD_BARE and not equals:
            at += 1
            continue
        if not equals:
            value = words[at + 1] if at + 1 < len(words) else ""
            at += 1
        at += 1
        if name in ("np", "num-proc"):
            plan.total_ranks = number(value, env, plan, "-np")
        elif name in _HOROVOD_VALUED and value:
            unread.append(name)
        else:
            return None
    return _finished(plan, words[at:], unread)


def _finished(plan: CommandPlan, rest: list[str], unread: list[str]) -> CommandPlan | None:
    rest = rest[1:] if rest[:1] == ["--"] else rest
    if not rest or ":" in rest:
        return None
    if unread:
        plan.notes.append(f"flags of the launcher that have no effect: {', '.join(sorted(unread))}")
    plan.run = rest
    return plan
