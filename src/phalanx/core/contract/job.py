"""The contract between a job spec and its ranks, made once at submit and stored with the job.

`schemas/spec` makes a `JobContract` of a validated spec (`JobSpec.to_contract`). Nothing after that
reads the spec again: every attempt takes its command, environment and policies from here.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from phalanx.core.contract.checkpointing import CheckpointPolicy
from phalanx.core.contract.pods import PodContract
from phalanx.core.contract.resume import ResumeSource
from phalanx.core.contract.trial import TrialContract
from phalanx.core.gang.stalls import StallPolicy
from phalanx.kit.text import job_label

_SHELL = re.compile(r"(?:.*/)?(?:ba|da|z)?sh")
_SCRIPT = re.compile(r"[^-]\S*\.(?:py|sh|bash|jl|r|R|lua|ipynb)")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)
# Modules that start another program: the entry point is that one.
_LAUNCHERS = frozenset(
    {"torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch"}
)


@dataclass(frozen=True, slots=True)
class JobIdentity:
    """The number, name and project of a job.

    `uid` begins with the id of the database, and no other job has it: numbers recur in another database.
    It is empty for jobs that were submitted to a release without it.
    """

    num: int
    name: str
    project: str
    uid: str = ""

    @property
    def label(self) -> str:
        """The name of the job in commands and paths, such as `j-12`."""
        return job_label(self.num)


@dataclass(frozen=True, slots=True)
class RankCommand:
    """A command: a list of words, or with `shell` one line for the shell."""

    words: tuple[str, ...]
    shell: bool = False

    @classmethod
    def of(cls, command: str | list[str]) -> RankCommand:
        """From a line for the shell, or a list of words."""
        return cls((command,), True) if isinstance(command, str) else cls(tuple(command))

    @property
    def argv(self) -> list[str] | str:
        """A list of words, or one line for the shell."""
        return self.words[0] if self.shell else list(self.words)

    @property
    def entry_point(self) -> str:
        """What the command runs: a script, the module behind `-m`, or else the program itself.

        It is found by its form (`train.py`, `run.sh`), so launchers in front of it and their options do not
        matter: that of `torchrun --nproc-per-node 8 ./train.py --lr 0.1` is `train.py`.
        """
        return _entry_point(self._plain_words)[0]

    @property
    def arguments(self) -> tuple[str, ...]:
        """The words behind the entry point, as a shell would split them."""
        return tuple(_entry_point(self._plain_words)[1])

    @property
    def _plain_words(self) -> Sequence[str]:
        return _shell_words(self.words[0]) if self.shell and self.words else self.words

    def under(self, program: list[str]) -> RankCommand:
        """The command of a program that prepares a rank and then runs this one."""
        how = ["--shell", "--"] if self.shell else ["--"]
        return RankCommand((*program, *how, *self.words))


def _shell_words(line: str) -> list[str]:
    """The words of a line for the shell; of one that cannot be split, what spaces separate."""
    reader = shlex.shlex(line, posix=True, punctuation_chars=True)
    reader.whitespace_split = True
    try:
        return list(reader)
    except ValueError:
        return line.split()


def _entry_point(words: Sequence[str]) -> tuple[str, Sequence[str]]:
    """The entry point among the words of a command, and the words behind it."""
    if len(words) > 2 and _SHELL.fullmatch(words[0]) and words[1] in ("-c", "-lc", "-ec"):
        return _entry_point(_shell_words(words[2]))
    for at, word in enumerate(words):
        after = words[at + 1] if at + 1 < len(words) else ""
        if word == "-m" and after and after not in _LAUNCHERS:
            return after, words[at + 2 :]
        if _SCRIPT.fullmatch(word):
            return word.removeprefix("./"), words[at + 1 :]
    for at, word in enumerate(words):
        if not _ASSIGNMENT.fullmatch(word):
            return word.removeprefix("./"), words[at + 1 :]
    return "", ()


@dataclass(frozen=True, slots=True)
class WarmStart:
    """Whether ranks are forked from a process that has imported torch, and what else it imports."""

    enabled: bool = True
    imports: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonRequirements:
    """The Python packages that a job installs: the spec's section `python`."""

    requirements: str | None = None
    packages: tuple[str, ...] = ()
    installer: str = "auto"
    index_url: str | None = None
    extra_index_urls: tuple[str, ...] = ()
    find_links: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleContract:
    """The command and the policies of the ranks of one role."""

    name: str  # name of the role
    command: RankCommand  # command of each rank
    #: name of an adapter in `core.frameworks`
    framework: str = "torch"
    slots_per_node: int = 1  # slots that the role holds on each node
    slots_per_rank: int = 1  # slots of each rank
    #: each rank sees its own devices only, also where ranks have one slot
    isolate_devices: bool = False
    #: CPUs that each node has to have; 0: the spec does not say
    cpus_per_node: int = 0
    #: memory that each node has to have; 0: the spec does not say
    memory_per_node_bytes: int = 0
    #: size of /dev/shm on each node; 0: the spec does not say
    shm_per_node_bytes: int = 0
    #: the world size to which the script's batch size refers
    reference_world: int = 1
    #: variables of its ranks, over those of the job
    env: Mapping[str, str] = field(default_factory=dict)
    #: what its containers are; None: as those of the job
    pod: PodContract | None = None
    #: the spec's section `training`, as given
    training: Mapping[str, Any] | None = None
    checkpoint: CheckpointPolicy = CheckpointPolicy()  # when and where to save
    stall: StallPolicy = StallPolicy()  # when a gang without steps counts as stalled
    #: patterns of `core.telemetry.line_patterns`
    metric_lines: tuple[str, ...] = ()
    #: seconds to save and exit after a stop request
    grace_s: float = 30.0
    #: its world is that of the first role: its steps and checkpoints are those of the job
    leads: bool = True
    #: its failure ends the job
    required: bool = True


def data_variable(name: str) -> str:
    """The environment variable of a rank with the path of an input."""
    return "PHALANX_DATA_" + "".join(one if one.isalnum() else "_" for one in name).upper()


@dataclass(frozen=True, slots=True)
class SourceState:
    """The Git commit that the code of a job was taken from, and how its files differed from it."""

    commit: str
    branch: str = ""  # empty: none was checked out
    #: tracked files that differ from the commit, the first ones of `num_changed`
    changed: tuple[str, ...] = ()
    num_changed: int = 0
    #: SHA-256 of the difference as `git diff HEAD --binary` writes it; empty: none
    diff_digest: str = ""
    #: SHA-256 of its text as it is stored, without credentials; empty: it is not stored
    diff_text: str = ""
    #: whether the text is only the beginning of the difference
    diff_cut: bool = False


@dataclass(frozen=True, slots=True)
class RepeatedJob:
    """The job that a clone repeats, and whether it must find the same software and inputs."""

    job: int
    require_same: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class JobContract:
    """The part of a job that all its attempts share; `roles` in the order of their node ranks."""

    #: in the order of their node ranks
    roles: tuple[RoleContract, ...]
    #: a command that runs on each node before the ranks
    setup: str | None = None
    #: variables of all ranks
    env: Mapping[str, str] = field(default_factory=dict)
    #: names of secrets of the project
    secrets: tuple[str, ...] = ()
    #: inputs that are staged before the start: path or URL by name
    data: Mapping[str, str] = field(default_factory=dict)
    #: unique over all databases; empty for jobs of releases without it
    uid: str = ""
    #: names of variables with values in the job's file of secrets, by layer: `caller`, `job`, `role.NAME`
    withheld: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    #: whether ranks are forked, and what is imported before
    warm: WarmStart = WarmStart()
    #: packages to install; None: none
    python: PythonRequirements | None = None
    #: what it asks of its containers; None: nothing
    pod: PodContract | None = None
    #: the trial of a study that the job is; None: it is none
    trial: TrialContract | None = None
    #: Git state of the work directory; None: unknown
    source: SourceState | None = None
    #: the job that it is a clone of; None: it is none
    repeats: RepeatedJob | None = None
    #: the checkpoint that it begins from; None: it begins anew
    resume: ResumeSource | None = None

    @property
    def pods(self) -> tuple[PodContract, ...]:
        """What the roles ask of their containers, each once; empty: nothing."""
        asked = [role.pod or self.pod for role in self.roles]
        return tuple(
            one for at, one in enumerate(asked) if one is not None and one not in asked[:at]
        )
