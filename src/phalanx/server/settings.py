"""The control plane's settings: defaults, then `PHALANX__SECTION__KEY` variables, then arguments.

No other module of the control plane reads the environment.
"""

from __future__ import annotations

import contextlib
import math
import os
import shlex
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    Field,
    ValidationError,
    field_validator,
)
from pydantic_settings import BaseSettings, SettingsConfigDict, SettingsError

from phalanx.checkpoint.encryption import parse_keys
from phalanx.checkpoint.removal.far import VARIABLES
from phalanx.core.scheduling import DEFAULT_POLICY, PlannerConfig
from phalanx.core.tenancy.identities import ClaimNames
from phalanx.core.training.checkpoints import far_prefix
from phalanx.errors import Problem, SpecInvalid, UserError
from phalanx.executors.node_files import MACHINE_VARIABLES
from phalanx.kit.text import nearest
from phalanx.launch.linux import replace_environment
from phalanx.launch.tls.trust import read_ca
from phalanx.schemas.home import HomeLayout
from phalanx.server.settings_groups.accounting import CostSettings, RetentionSettings
from phalanx.server.settings_groups.forms import SettingsGroup, file_or_value, read_duration
from phalanx.server.settings_groups.log_senders import LogSenderSettings
from phalanx.server.settings_groups.notify import NotifySettings
from phalanx.server.settings_groups.objectives import SloSettings
from phalanx.server.settings_groups.probes import ProbeSettings
from phalanx.server.settings_groups.traces import TraceSettings
from phalanx.services.login.provider import LoginConfig, is_protected
from phalanx.services.objects.code_archives import CodeArchives
from phalanx.services.objects.log_files import LogFiles
from phalanx.services.secret_managers.mounted_files import MountedFiles
from phalanx.services.secret_managers.vault import VaultConfig, credential_error
from phalanx.store.secrets.envelope import GivenKeys, KeyWrapper

_PREFIX = "PHALANX__"
_COMMAND_S = 60.0
_MAX_KEYS = 1 << 16
# Settings that had another name: section and key, then and now.
_RENAMED = {("scheduler", "hole_ttl_s"): ("scheduler", "reservation_ttl_s")}


class DatabaseSettings(SettingsGroup):
    """The database."""

    url: str | None = Field(
        default=None,
        repr=False,
        description="PostgreSQL URL, or `file:PATH` of a file that contains it; absent: the SQLite file of "
        "the home.",
    )

    def resolved(self) -> str | None:
        """The URL itself, read from its file where one is named. Raises SpecInvalid."""
        if self.url is None or not self.url.startswith("file:"):
            return self.url or None
        name = _variable(("database", "url"))
        path = Path(self.url.removeprefix("file://").removeprefix("file:"))
        try:
            text = path.read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            said = error.strerror if isinstance(error, OSError) else "it is not text"
            raise SpecInvalid([Problem(name, f"{path} cannot be read: {said}")]) from None
        if not text or len(text.splitlines()) > 1:
            raise SpecInvalid([Problem(name, f"{path} must contain one line: the URL")])
        return text


class SecretSettings(SettingsGroup):
    """Secrets."""

    key: str | None = Field(
        default=None,
        repr=False,
        description="Master keys of secrets, `file:PATH` of a file that contains them, or `command:WORDS` "
        "of a program that prints them, such as the client of a key service: 64 hex digits or 32 bytes in "
        "base64 each, between commas. The first one encrypts. Absent: the file `secrets.key` of the home, "
        "which the first secret makes.",
    )

    def resolved(self) -> KeyWrapper | None:
        """The given keys; None: the file of the home. Raises SpecInvalid, which quotes no key."""
        if not self.key:
            return None
        name = _variable(("secrets", "key"))
        try:
            text = self.key
            if text.startswith("file:"):
                text = Path(text.removeprefix("file://").removeprefix("file:")).read_text()
            elif text.startswith("command:"):
                text = _printed_by(name, text.removeprefix("command:"))
            return GivenKeys(parse_keys(text))
        except (OSError, ValueError) as error:
            said = error.strerror if isinstance(error, OSError) else "not a list of keys"
            raise SpecInvalid([Problem(name, f"{said}: 64 hex digits each")]) from None


def _printed_by(name: str, command: str) -> str:
    """What a command prints, without a shell. Raises SpecInvalid, which quotes nothing that it printed."""
    try:
        words = shlex.split(command)
        done = subprocess.run(
            words, stdin=subprocess.DEVNULL, capture_output=True, timeout=_COMMAND_S, check=False
        )
    except subprocess.TimeoutExpired:
        said = f"the command did not end within {_COMMAND_S:.0f} s"
    except (OSError, ValueError, IndexError) as error:
        reason = error.strerror if isinstance(error, OSError) else "its words cannot be read"
        said = f"the command cannot be run: {reason}"
    else:
        if done.returncode == 0:
            return done.stdout[:_MAX_KEYS].decode("ascii", "replace")
        said = f"the command ended with status {done.returncode}"
    raise SpecInvalid([Problem(name, f"{said}; run it by hand to see why")]) from None


ProjectPath = Annotated[
    str, Field(max_length=300, pattern=r"^([A-Za-z0-9_@-][A-Za-z0-9._@-]*/)*\{project\}$")
]


class VaultSettings(SettingsGroup):
    """HashiCorp Vault or OpenBao as a secret manager: references `vault:PATH#KEY` of `phalanx secrets`."""

    address: Annotated[str, Field(max_length=300, pattern="^https?://[!-~]+$")] | None = Field(
        default=None,
        description="URL of the server; absent: references to `vault` are refused. Without TLS it must be "
        "an address of this machine, such as an agent.",
    )
    token: str | None = Field(
        default=None,
        repr=False,
        description="Token of the control plane, or `file:PATH` of a file that contains it and is read "
        "again at each use, as an agent writes it; absent: an AppRole.",
    )
    role_id: Annotated[str, Field(max_length=200)] | None = Field(
        default=None, description="Role id of the AppRole that the control plane logs in with."
    )
    secret_id: str | None = Field(
        default=None,
        repr=False,
        description="Secret id of the AppRole, or `file:PATH`; absent: a role without one.",
    )
    namespace: Annotated[str, Field(max_length=200)] = Field(
        default="", description="Namespace of all requests; empty: the root."
    )
    mount: Annotated[str, Field(min_length=1, max_length=200, pattern="^[A-Za-z0-9._/-]+$")] = (
        Field(default="secret", description="Path of the KV engine, of version 2.")
    )
    auth_mount: Annotated[
        str, Field(min_length=1, max_length=200, pattern="^[A-Za-z0-9._/-]+$")
    ] = Field(default="approle", description="Path of the AppRole method.")
    project_path: ProjectPath = Field(
        default="phalanx/{project}",
        description="Folder in the engine that a project may read below. References of the whole platform "
        "may name every path.",
    )
    ca: Path | None = Field(
        default=None,
        description="PEM file of the authority of the server's certificate; absent: those of the system.",
    )
    timeout_s: float = Field(
        default=3.0, gt=0, le=10, description="Limit on connecting, and on each wait for data."
    )

    def resolved(self) -> VaultConfig | None:
        """The server and the credentials; None: none is configured. Raises SpecInvalid."""
        if self.address is None:
            return None
        if not is_protected(self.address, local=True):
            raise SpecInvalid(
                [Problem(_variable(("vault", "address")), "must begin with https://")]
            )
        if (self.token is None) == (self.role_id is None):
            said = "give either the token, or the role id of an AppRole"
            raise SpecInvalid([Problem(_variable(("vault", "token")), said)])
        return VaultConfig(
            address=self.address,
            token=None if self.token is None else file_or_value(self.token, credential_error),
            role_id=self.role_id or "",
            secret_id=None
            if self.secret_id is None
            else file_or_value(self.secret_id, credential_error),
            namespace=self.namespace,
            mount=self.mount.strip("/"),
            auth_mount=self.auth_mount.strip("/"),
            project_path=self.project_path,
            ca=self._authority(),
            timeout_s=self.timeout_s,
        )

    def _authority(self) -> str:
        if self.ca is None:
            return ""
        try:
            return read_ca(self.ca)
        except UserError as error:
            raise SpecInvalid([Problem(_variable(("vault", "ca")), error.message)]) from None


class SecretFileSettings(SettingsGroup):
    """A directory of files as a secret manager: references `files:PATH#KEY` of `phalanx secrets`."""

    root: Path | None = Field(
        default=None,
        description="The directory, with a folder for each path and a file for each key, such as mounted "
        "Kubernetes secrets; absent: references to `files` are refused.",
    )
    project_path: ProjectPath = Field(
        default="{project}", description="Folder in the directory that a project may read below."
    )

    def resolved(self) -> MountedFiles | None:
        """The directory; None: none is configured."""
        return None if self.root is None else MountedFiles(self.root, self.project_path)


class TlsSettings(SettingsGroup):
    """Encryption of the API's port."""

    generate: bool = Field(
        default=False,
        description="Make an authority in the home and certificates by it, renewed in time. They are for "
        "the names and addresses of this machine, the server's URL and `allowed_hosts`.",
    )
    cert: Path | None = Field(
        default=None,
        description="PEM file of a certificate, with its chain; read again on changes.",
    )
    key: Path | None = Field(default=None, description="PEM file of its key, without a password.")
    ca: Path | None = Field(
        default=None,
        description="PEM file of the authority that supervisors accept; absent: the last certificate of "
        "the chain if it signed itself, else the authorities of the system.",
    )
    plain_http: bool = Field(
        default=False,
        description="Listen without TLS on an address that other machines reach, as behind a proxy.",
    )


class LoopSettings(SettingsGroup):
    """Intervals between steps of the loops when nothing triggers them."""

    scheduler_tick_s: float = Field(default=2.0, gt=0, description="Scheduler.")
    dispatcher_tick_s: float = Field(
        default=2.0, gt=0, description="Dispatcher of outbox commands."
    )
    timers_tick_s: float = Field(default=5.0, gt=0, description="Back-offs and time limits.")
    poll_tick_s: float = Field(
        default=0.5, gt=0, description="State of the supervisors' processes."
    )
    draining_tick_s: float = Field(
        default=1.0, gt=0, description="Nodes that their cluster is going to remove."
    )
    scaling_tick_s: float = Field(
        default=5.0, gt=0, description="Nodes that pools ask their clusters for, and release."
    )
    metrics_tick_s: float = Field(
        default=5.0, gt=0, description="Roll-ups of metrics that have arrived."
    )
    hanging_after_s: float = Field(
        default=300.0,
        gt=0,
        description="Duration of a step after which a leader gives up its lease, where another replica can "
        "lead: it waits for an executor that does not answer.",
    )
    logs_tick_s: float = Field(default=5.0, gt=0, description="Packing of output that has arrived.")
    leaving_tick_s: float = Field(
        default=0.02, gt=0, description="State of supervisors that are leaving."
    )


# The planner's own defaults: the platform, the simulator and the benchmark share this one object.
_PLANNER = PlannerConfig()


def _factor(value: object) -> object:
    return math.inf if value in (None, "never") else value


class SchedulerSettings(SettingsGroup):
    """The scheduling policy. Durations in seconds."""

    policy: Literal["throughput", "fair", "fifo", "deadline"] = Field(
        default=DEFAULT_POLICY,
        description="Planning policy: a named set of constants (docs/explanation/policies.md), in effect "
        "unless `phalanx scheduler policy set` has stored another one. The settings of this group that "
        "are given replace the constants of either.",
    )
    guard_after_s: float = Field(
        default=_PLANNER.guard_after_s,
        gt=0,
        description="A job that has waited longer than this in total is scheduled first within its "
        "priority.",
    )
    guard_quantum_s: float = Field(
        default=_PLANNER.guard_quantum_s,
        ge=0,
        description="Time after the start of such a job in which jobs of its priority cannot preempt it.",
    )
    peer_hysteresis: Annotated[float, BeforeValidator(_factor)] = Field(
        default=_PLANNER.hysteresis,
        gt=1,
        description="A waiting job this many times more urgent than a running one of the same "
        "priority preempts it, if that job saves on request or has just saved a checkpoint; `never`: "
        "jobs of equal priority do not share time.",
    )
    min_run_s: float = Field(
        default=_PLANNER.min_run_s,
        ge=0,
        description="Time after a start in which jobs of the same priority cannot preempt it.",
    )
    reservation_ttl_s: float = Field(
        default=_PLANNER.reservation_ttl_s,
        gt=0,
        description="How long preempted slots stay reserved for the job they were preempted for.",
    )
    resize_cooldown_s: float = Field(
        default=_PLANNER.resize_cooldown_s,
        ge=0,
        description="Minimum time between two size changes of an elastic job.",
    )
    urgent_priority: int | None = Field(
        default=_PLANNER.urgent_priority,
        ge=0,
        le=100,
        description="Jobs of this priority or higher may preempt guaranteed slots.",
    )
    usage_half_life_s: float = Field(
        default=7 * 86_400.0, gt=0, description="Half-life of past usage in fair-share accounting."
    )


class StorageSettings(SettingsGroup):
    """Files of the control plane in an object store."""

    objects: str | None = Field(
        default=None,
        description="Object store of code archives and of packed output, `s3://bucket/prefix`, with "
        "credentials from the environment: every control plane serves them, and the home is a cache of "
        "code. Absent: the home.",
    )

    @field_validator("objects")
    @classmethod
    def _is_a_prefix(cls, url: str | None) -> str | None:
        return None if url is None else far_prefix(url)

    def code_archives(self) -> CodeArchives | None:
        """The code archives in the object store, with the credentials of this process; None: no store."""
        if self.objects is None:
            return None
        return CodeArchives(self.objects, dict(os.environ))  # noqa: TID251 - credentials of the store

    def log_files(self, home: HomeLayout) -> LogFiles:
        """The files of packed output, with the credentials of this process."""
        environ = {} if self.objects is None else dict(os.environ)  # noqa: TID251
        return LogFiles(home.logs_dir, self.objects, environ)


class MetricsSettings(SettingsGroup):
    """Metrics in the text format of Prometheus."""

    max_series: int = Field(
        default=60_000,
        ge=2_000,
        le=1_000_000,
        description="The most series of one scrape. Above it series of live jobs are left out, first "
        "histograms of jobs, then ranks, and `phalanx_series_not_shown` counts them.",
    )


class ApiSettings(SettingsGroup):
    """The HTTP API."""

    allowed_hosts: tuple[str, ...] = Field(
        default=("127.0.0.1", "localhost", "::1"),
        description="Names accepted in the Host header, beside the name in the server's URL.",
    )
    public_url: Annotated[str, Field(pattern=r"^https?://[A-Za-z0-9._:\[\]-]+/?$")] | None = Field(
        default=None,
        description="URL under which users reach the control plane, such as that of a proxy: answers "
        "name the pages of jobs below it, a login returns to it, and its host name is accepted. Absent: "
        "answers use the URL of the request.",
    )
    max_wait_s: float = Field(default=30.0, gt=0, description="Upper limit of a long poll.")
    max_streams: int = Field(
        default=500,
        ge=1,
        description="Live views (server-sent events) that are open at a time. More are answered with 429.",
    )
    max_stream_s: float = Field(
        default=1800.0,
        ge=0,
        description="Time after which a live view ends, so that clients spread over replicas that were "
        "started since; the client connects again. A fifth of it is subtracted at random at most.",
    )
    max_body_bytes: int = Field(
        default=8 << 20,
        gt=0,
        description="Upper limit of a client's request body; code uploads have a limit of their own.",
    )
    max_requests_per_token: int = Field(
        default=128,
        ge=4,
        description="Requests of one token that are served at a time, long polls included; a quarter of "
        "them may change something. More are answered with 429.",
    )


class GrpcSettings(SettingsGroup):
    """The gRPC API, which needs the extra `grpc`. It has the limits of the HTTP API, too."""

    port: int | None = Field(
        default=None,
        ge=1,
        le=65535,
        description="TCP port on the interface of the HTTP API; absent: there is no gRPC API.",
    )
    max_calls: int = Field(
        default=512,
        ge=1,
        description="Calls that are served at a time, streams included. More are answered with "
        "RESOURCE_EXHAUSTED.",
    )
    health: bool = Field(
        default=False,
        description="Serve `grpc.health.v1.Health`, which says what `/readyz` says; it needs no token.",
    )
    reflection: bool = Field(
        default=False,
        description="Serve `grpc.reflection.v1alpha`, by which tools read the methods; it needs no token.",
    )


class LoginSettings(SettingsGroup):
    """`phalanx login` over an OpenID Connect provider."""

    issuer: Annotated[str, Field(max_length=200, pattern="^https?://[!-~]+$")] | None = Field(
        default=None,
        description="URL of the identity provider, exactly as its discovery document names it; absent: "
        "`phalanx login` is off.",
    )
    client_id: Annotated[str, Field(min_length=1, max_length=200)] | None = Field(
        default=None, description="Id under which the provider knows this control plane."
    )
    client_secret: str | None = Field(
        default=None,
        repr=False,
        description="Secret of the client, or `file:PATH` of a file that contains it; absent: a public "
        "client.",
    )
    provider_name: Annotated[str, Field(max_length=100)] = Field(
        default="the identity provider", description="Name of the provider for users."
    )
    scopes: tuple[str, ...] = Field(
        default=("openid", "profile"), description="Scopes that are asked of the provider."
    )
    name_claim: Annotated[str, Field(min_length=1, max_length=100)] = Field(
        default="preferred_username",
        description="Claim with the name of the account that the first login makes.",
    )
    groups_claim: Annotated[str, Field(min_length=1, max_length=100)] | None = Field(
        default=None,
        description="Claim with the groups of a user, which become its groups here; absent: the provider "
        "names none.",
    )
    token_s: Annotated[float, BeforeValidator(read_duration), Field(ge=60, le=31 * 86400)] = Field(
        default=12 * 3600.0, description="Lifetime of a token that a login ends in, such as `12h`."
    )

    def resolved(self) -> LoginConfig | None:
        """The provider and this client; None: no logins. Raises SpecInvalid, which quotes no secret."""
        if self.issuer is None:
            return None
        name = _variable(("login", "issuer"))
        if not is_protected(self.issuer, local=True):
            raise SpecInvalid([Problem(name, "must begin with https://")])
        if self.client_id is None:
            said = "is required beside the issuer"
            raise SpecInvalid([Problem(_variable(("login", "client_id")), said)])
        if "openid" not in self.scopes:
            said = "must contain openid"
            raise SpecInvalid([Problem(_variable(("login", "scopes")), said)])
        return LoginConfig(
            issuer=self.issuer,
            client_id=self.client_id,
            client_secret=self._secret(),
            provider_name=self.provider_name,
            scopes=self.scopes,
            claims=ClaimNames(self.name_claim, self.groups_claim),
            token_s=self.token_s,
        )

    def _secret(self) -> str | None:
        given = self.client_secret
        if not given or not given.startswith("file:"):
            return given or None
        path = Path(given.removeprefix("file://").removeprefix("file:"))
        try:
            return path.read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            said = error.strerror if isinstance(error, OSError) else "it is not text"
            name = _variable(("login", "client_secret"))
            raise SpecInvalid([Problem(name, f"{path} cannot be read: {said}")]) from None


class LogSettings(SettingsGroup):
    """Log lines of the control plane and its supervisors."""

    format: Literal["text", "json"] = Field(
        default="text", description="`text`, or `json`: one JSON object a line."
    )
    level: Literal["debug", "info", "warning", "error"] = Field(
        default="warning", description="The lowest level that the control plane writes."
    )


class Settings(BaseSettings):
    """All settings of a control plane."""

    model_config = SettingsConfigDict(
        env_prefix=_PREFIX, env_nested_delimiter="__", frozen=True, extra="ignore"
    )

    database: DatabaseSettings = DatabaseSettings()
    secrets: SecretSettings = SecretSettings()
    vault: VaultSettings = VaultSettings()
    secret_files: SecretFileSettings = SecretFileSettings()
    login: LoginSettings = LoginSettings()
    loops: LoopSettings = LoopSettings()
    api: ApiSettings = ApiSettings()
    grpc: GrpcSettings = GrpcSettings()
    tls: TlsSettings = TlsSettings()
    scheduler: SchedulerSettings = SchedulerSettings()
    retention: RetentionSettings = RetentionSettings()
    cost: CostSettings = CostSettings()
    slo: SloSettings = SloSettings()
    storage: StorageSettings = StorageSettings()
    metrics: MetricsSettings = MetricsSettings()
    notify: NotifySettings = NotifySettings()
    log_senders: LogSenderSettings = LogSenderSettings()
    probes: ProbeSettings = ProbeSettings()
    traces: TraceSettings = TraceSettings()
    log: LogSettings = LogSettings()
    idle_exit_s: float | None = Field(
        default=None, description="Exit after this long without a client and without a live job."
    )
    contact_lost_after_s: float = Field(
        default=480.0,
        gt=0,
        description="A supervisor without contact for longer than this stops its ranks.",
    )


def read_settings() -> Settings:
    """The settings of this process's environment. Raises SpecInvalid naming each wrong variable."""
    given = [name for name in sorted(os.environ) if name.upper().startswith(_PREFIX)]  # noqa: TID251
    problems = {name.upper(): Problem(name, said) for name in given if (said := _unknown(name))}
    try:
        found = Settings()
    except ValidationError as error:
        for one in error.errors():
            name = _variable(one["loc"])
            said = _unknown(name) if one["type"] == "extra_forbidden" else one["msg"]
            problems.setdefault(name, Problem(name, said, str(one["input"])))
    except SettingsError as error:
        problems[""] = Problem("", f"{error}: write JSON")
    if problems:
        raise SpecInvalid(list(problems.values()), "docs/reference/settings.md lists all settings")
    return found


def hide_secret_settings() -> None:
    """Remove the database's URL, master keys and credentials from this process's environment.

    No job inherits them or finds them in `/proc`.
    """
    hidden = (
        ("database", "url"),
        ("secrets", "key"),
        ("login", "client_secret"),
        ("vault", "token"),
        ("vault", "secret_id"),
        ("notify", "receivers"),
        ("notify", "smtp_password"),
        ("log_senders", "senders"),
        ("traces", "endpoint"),
        ("traces", "headers"),
    )
    for name in map(_variable, hidden):
        given = os.environ.get(name)  # noqa: TID251
        if given:
            with contextlib.suppress(OSError):  # set after the start: `/proc` does not show it
                replace_environment(name, "-" * len(given.encode()))
            del os.environ[name]  # noqa: TID251


def _unknown(name: str) -> str:
    """Why an environment variable is not a setting; empty when it is one."""
    section, _, key = name.upper().removeprefix(_PREFIX).lower().partition("__")
    renamed = _RENAMED.get((section, key))
    if renamed is not None:
        return f"this setting is now called {_variable(renamed)}: set that variable instead"
    if section not in Settings.model_fields:
        close = nearest(section, Settings.model_fields)
        hint = "" if close is None else f"; did you mean {_variable((close,))}?"
        return f"there is no such setting{hint}"
    group = Settings.model_fields[section].annotation
    known = group.model_fields if isinstance(group, type) and issubclass(group, BaseModel) else {}
    if not key or key in known:
        return ""
    close = nearest(key, known)
    hint = "" if close is None else f"; did you mean {_variable((section, close))}?"
    return f"there is no such setting{hint}"


def _variable(parts: Iterable[int | str]) -> str:
    """The name of the environment variable of a setting: its section and key."""
    return _PREFIX + "__".join(str(part).upper() for part in parts)


_KEPT = (*MACHINE_VARIABLES, "TZ")


def store_environment() -> dict[str, str]:
    """The variables of this process that configure the clients of object stores."""
    named = sorted(os.environ)  # noqa: TID251
    return {name: os.environ[name] for name in named if name.startswith(VARIABLES)}  # noqa: TID251


def base_environment() -> dict[str, str]:
    """The base environment of ranks of `submit` jobs: selected variables of this machine.

    The folder of the server's interpreter comes first in PATH, so that `python` is the same one.
    """
    env = {name: os.environ[name] for name in _KEPT if name in os.environ}  # noqa: TID251
    here = str(Path(sys.executable).parent)
    rest = [part for part in env.get("PATH", os.defpath).split(os.pathsep) if part != here]
    env["PATH"] = os.pathsep.join([here, *rest])
    env.setdefault("HOME", str(Path("~").expanduser()))
    env.setdefault("LANG", "C.UTF-8")
    return env
