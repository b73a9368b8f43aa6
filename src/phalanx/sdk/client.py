"""`PhalanxClient`: the whole API as methods of one class."""

from __future__ import annotations

import ssl
import time
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, Literal

import httpx

from phalanx.core.contract.access import Scope
from phalanx.schemas.api.body import HelloRequest, HelloResponse, InfoView, ReadinessView
from phalanx.schemas.api.credentials import (
    CreateTokenRequest,
    EndedSessions,
    LoginLink,
    TokenCreated,
    TokenView,
)
from phalanx.schemas.api.health.alerts import ProbeView
from phalanx.schemas.api.health.objectives import ObjectivesView
from phalanx.schemas.api.pools import (
    ApplyPoolsRequest,
    ApplyProjectsRequest,
    ApplyResponse,
    DrainRequest,
    DrainResponse,
    ForgetPoolRequest,
    ForgetPoolResponse,
    LeftoversView,
    NodeView,
    PoolScalingView,
    PoolView,
    ProjectView,
    QuotaList,
    ScalePoolRequest,
    SchedulerPolicyView,
    SetPolicyRequest,
    StoreView,
)
from phalanx.schemas.api.telemetry import LogSenderView
from phalanx.schemas.api.why import WhyView
from phalanx.sdk.accounts import AccountCalls
from phalanx.sdk.alerts import AlertCalls
from phalanx.sdk.cost import CostCalls
from phalanx.sdk.jobs import JobCalls
from phalanx.sdk.live import LiveCalls
from phalanx.sdk.retention import RetentionCalls
from phalanx.sdk.runs import RunCalls
from phalanx.sdk.schedules import ScheduleCalls
from phalanx.sdk.secrets import SecretCalls
from phalanx.sdk.studies import StudyCalls
from phalanx.sdk.templates import TemplateCalls
from phalanx.sdk.traces import TraceCalls
from phalanx.sdk.transport import V1, read, unreachable
from phalanx.sdk.tunnels import TunnelCalls


class PhalanxClient(JobCalls):
    """A client of one server, with one method for each route; those about jobs are in `JobCalls`.

    Those that follow jobs are methods of `client.live`, those about studies of `client.studies`, those
    about cost of `client.costs`, those about secrets of `client.secrets`, those about schedules of
    `client.schedules`, those about job templates of `client.templates`, those about archived, pinned and
    deleted jobs of `client.retention`, those that reach into running jobs of `client.tunnels`, those about
    traces of `client.traces`, queries over runs of `client.runs`.

    Args:
        url: Address of the server, such as `http://127.0.0.1:8080`.
        token: The bearer token of the server's home.
        socket: Path of the Unix socket of a server of this user; used in place of `url` where it exists.
        ca: The authority of the server's certificate, in PEM: no other one is accepted. Default: those of
            the system.
        transport: Replaces the network in tests.

    Every method raises ServerUnavailable when no server answers. Not safe for use by several threads.
    """

    @cached_property
    def studies(self) -> StudyCalls:
        """The calls about studies, on the same connection."""
        return StudyCalls(self.url, self._http)

    @cached_property
    def live(self) -> LiveCalls:
        """The calls that follow jobs, on the same connection."""
        return LiveCalls(self.url, self._http)

    @cached_property
    def costs(self) -> CostCalls:
        """The calls about cost, on the same connection."""
        return CostCalls(self.url, self._http)

    @cached_property
    def accounts(self) -> AccountCalls:
        """The calls about users, groups and roles, on the same connection."""
        return AccountCalls(self.url, self._http)

    @cached_property
    def schedules(self) -> ScheduleCalls:
        """The calls about schedules, on the same connection."""
        return ScheduleCalls(self.url, self._http)

    @cached_property
    def templates(self) -> TemplateCalls:
        """The calls about job templates, on the same connection."""
        return TemplateCalls(self.url, self._http)

    @cached_property
    def retention(self) -> RetentionCalls:
        """The calls about archived, pinned and deleted jobs, on the same connection."""
        return RetentionCalls(self.url, self._http)

    @cached_property
    def tunnels(self) -> TunnelCalls:
        """The calls about tunnels to ranks, on the same connection."""
        return TunnelCalls(self.url, self._http)

    @cached_property
    def alerts(self) -> AlertCalls:
        """The calls about alerts, silences and messages, on the same connection."""
        return AlertCalls(self.url, self._http)

    @cached_property
    def traces(self) -> TraceCalls:
        """The calls about traces of jobs, on the same connection."""
        return TraceCalls(self.url, self._http)

    @cached_property
    def runs(self) -> RunCalls:
        """The calls about runs with their parameters and metrics, on the same connection."""
        return RunCalls(self.url, self._http)

    @cached_property
    def secrets(self) -> SecretCalls:
        """The calls about secrets, on the same connection."""
        return SecretCalls(self.url, self._http)

    def is_healthy(self) -> bool:
        """Whether a server answers; False instead of an error."""
        try:
            answer = self._http.get("/healthz", timeout=5.0)
            return answer.is_success and bool(answer.json().get("status") == "ok")
        except (httpx.HTTPError, ValueError, AttributeError):
            return False

    def measure(self) -> tuple[float, datetime | None]:
        """Seconds until an answer of the server, and the end of its certificate; None without TLS."""
        began_s = time.monotonic()
        try:
            with self._http.stream("GET", "/healthz") as answer:
                lasted_s = time.monotonic() - began_s
                stream = answer.extensions.get("network_stream")
                tls = None if stream is None else stream.get_extra_info("ssl_object")
                shown = (tls.getpeercert() or {}).get("notAfter") if tls is not None else None
        except httpx.HTTPError as error:
            raise unreachable(self.url, error) from error
        if shown is None:
            return lasted_s, None
        return lasted_s, datetime.fromtimestamp(ssl.cert_time_to_seconds(str(shown)), UTC)

    def readiness(self) -> ReadinessView:
        """Whether the server can do its work, and what is wrong where it cannot."""
        return read(ReadinessView, self._send("GET", "/readyz"))

    def info(self) -> InfoView:
        """The server's version, process and state."""
        return self._get(f"{V1}/info", InfoView)

    def hello(self, client: str = "") -> HelloResponse:
        """Announce this client; an embedded server stays up for it."""
        body = HelloRequest(client=client)
        return self._post(f"{V1}/clients/hello", body, HelloResponse)

    def pools(self) -> list[PoolView]:
        """All pools with their free slots."""
        return self._get(f"{V1}/pools", list[PoolView])

    def pool(self, name: str) -> PoolView:
        """One pool with its part of the pool file. Raises NotFound."""
        return self._get(f"{V1}/pools/{name}", PoolView)

    def pool_scaling(self, name: str) -> PoolScalingView:
        """How a pool grows and shrinks: bounds, open requests, decisions. Raises NotFound."""
        return self._get(f"{V1}/pools/{name}/scaling", PoolScalingView)

    def scale_pool(
        self,
        name: str,
        *,
        min_nodes: int | None = None,
        max_nodes: int | None = None,
        autoscaling: Literal["on", "off"] | None = None,
    ) -> PoolScalingView:
        """Set bounds of a pool, which precede its pool file. Raises NotFound, SpecInvalid."""
        body = ScalePoolRequest(min_nodes=min_nodes, max_nodes=max_nodes, autoscaling=autoscaling)
        return self._put(f"{V1}/pools/{name}/scaling", body, PoolScalingView)

    def reset_pool_scaling(self, name: str) -> None:
        """Return to the bounds of the pool file. Raises NotFound."""
        self._delete(f"{V1}/pools/{name}/scaling")

    def apply_pools(self, file: Mapping[str, Any]) -> ApplyResponse:
        """Add or replace the pools of a pool file. Raises SpecInvalid, Conflict."""
        body = ApplyPoolsRequest(file=dict(file))
        return self._post(f"{V1}/pools/apply", body, ApplyResponse)

    def remove_pool(self, name: str) -> None:
        """Remove a pool. Raises NotFound, and Conflict while jobs run in it."""
        self._delete(f"{V1}/pools/{name}")

    def leftovers(self, pool: str) -> list[LeftoversView]:
        """What control planes have left in the cluster of a pool. Raises NotFound."""
        return self._get(f"{V1}/pools/{pool}/leftovers", list[LeftoversView])

    def forget_pool(self, name: str, owner: str | None = None) -> ForgetPoolResponse:
        """Remove the objects of a control plane from a pool's cluster; no owner: this one's, and the pool.

        Raises NotFound, and Conflict while jobs of this control plane run there.
        """
        body = ForgetPoolRequest(owner=owner)
        return self._post(f"{V1}/pools/{name}/forget", body, ForgetPoolResponse)

    def nodes(self, pool: str | None = None) -> list[NodeView]:
        """All nodes, or those of one pool, with their free slots."""
        return self._get(f"{V1}/nodes", list[NodeView], {"pool": pool})

    def node(self, name: str) -> NodeView:
        """One node. Raises NotFound."""
        return self._get(f"{V1}/nodes/{name}", NodeView)

    def drain(
        self,
        name: str,
        *,
        reason: str = "",
        state: Literal["drained", "quarantined"] = "drained",
        jobs: Literal["leave", "move"] = "leave",
    ) -> DrainResponse:
        """Keep new jobs from starting on a node. Raises NotFound."""
        body = DrainRequest(reason=reason, state=state, jobs=jobs)
        return self._post(f"{V1}/nodes/{name}/drain", body, DrainResponse)

    def undrain(self, name: str) -> NodeView:
        """Allow jobs to start on a node again. Raises NotFound."""
        return self._post(f"{V1}/nodes/{name}/undrain", None, NodeView)

    def projects(self) -> list[ProjectView]:
        """All projects with their limits and usage."""
        return self._get(f"{V1}/projects", list[ProjectView])

    def project(self, name: str) -> ProjectView:
        """One project with its part of the project file. Raises NotFound."""
        return self._get(f"{V1}/projects/{name}", ProjectView)

    def apply_projects(self, file: Mapping[str, Any]) -> ApplyResponse:
        """Add or replace the projects of a project file. Raises SpecInvalid."""
        body = ApplyProjectsRequest(file=dict(file))
        return self._post(f"{V1}/projects/apply", body, ApplyResponse)

    def remove_project(self, name: str) -> None:
        """Remove a project's limits. Raises NotFound, and Conflict for a parent of other projects."""
        self._delete(f"{V1}/projects/{name}")

    def stores(self) -> list[StoreView]:
        """Stores of data outside the nodes, with the residency of each."""
        return self._get(f"{V1}/stores", list[StoreView])

    def log_senders(self) -> list[LogSenderView]:
        """The senders of output to other log stores, and how far each is. Needs the scope admin."""
        return self._get(f"{V1}/logs/senders", list[LogSenderView])

    def probes(self) -> list[ProbeView]:
        """The newest probe job of each pool."""
        return self._get(f"{V1}/probes", list[ProbeView])

    def quotas(self, *, project: str | None = None, user: str | None = None) -> QuotaList:
        """Quotas of projects, slot types and users with what counts against them, and their alerts."""
        return self._get(f"{V1}/quotas", QuotaList, {"project": project, "user": user})

    def scheduler_policy(self) -> SchedulerPolicyView:
        """The planning policy in effect, and where it comes from."""
        return self._get(f"{V1}/scheduler/policy", SchedulerPolicyView)

    def set_scheduler_policy(self, name: str) -> SchedulerPolicyView:
        """Set the planning policy: the next pass uses it. Raises UserError for an unknown name.

        Needs the scope admin.
        """
        body = SetPolicyRequest(policy=name)
        return self._put(f"{V1}/scheduler/policy", body, SchedulerPolicyView)

    def reset_scheduler_policy(self) -> None:
        """Return to the policy of the control plane's start. Needs the scope admin."""
        self._delete(f"{V1}/scheduler/policy")

    def tokens(self) -> list[TokenView]:
        """Your tokens that have not expired, without values; those of all for an admin.

        Needs the scope admin.
        """
        return self._get(f"{V1}/tokens", list[TokenView])

    def create_token(
        self,
        name: str,
        scopes: Iterable[Scope | str],
        expires_s: float | None = None,
        *,
        principal: str | None = None,
    ) -> TokenCreated:
        """Create a token; its value is in the answer and cannot be read again. Raises SpecInvalid.

        An admin of the platform may name another account as its `principal`.
        """
        wanted = [Scope(one) for one in scopes]
        body = CreateTokenRequest(
            name=name, scopes=wanted, expires_s=expires_s, principal=principal
        )
        return self._post(f"{V1}/tokens", body, TokenCreated)

    def rotate_token(self, id: str) -> TokenCreated:
        """Give a token a new value; the old one ends at once. Raises NotFound.

        `admin` is the token of the home.
        """
        return self._post(f"{V1}/tokens/{id}/rotate", None, TokenCreated)

    def revoke_token(self, id: str) -> None:
        """Revoke a token, and the sessions that it opened. Raises NotFound."""
        self._delete(f"{V1}/tokens/{id}")

    def login_link(self) -> str:
        """A link that opens the pages in one browser, within 15 minutes, without a token in it."""
        return self.url + self._post(f"{V1}/tokens/login-links", None, LoginLink).path

    def end_sessions(self) -> int:
        """End the sessions of all browsers; returns their number. Needs the scope admin."""
        return self._post(f"{V1}/tokens/end-sessions", None, EndedSessions).count

    def objectives(self, *, days: int = 30, project: str | None = None) -> ObjectivesView:
        """Objectives of job classes with their error budgets, by the jobs that ended within these days."""
        return self._get(f"{V1}/objectives", ObjectivesView, {"days": days, "project": project})

    def why(self, num: int) -> WhyView:
        """Explain why a job waits, runs or was preempted. Raises NotFound."""
        return self._get(f"{V1}/jobs/{num}/why", WhyView)
