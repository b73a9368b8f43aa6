"""The files that `phalanx dashboards export` writes, one function for each kind of file."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any
from urllib.parse import urlsplit

import yaml

from phalanx.core.alerts.alertmanager import alertmanager_example
from phalanx.core.alerts.prometheus import AlertLinks, alert_rules
from phalanx.core.metrics.aliases import rule_file
from phalanx.core.slo.recording import slo_rule_file
from phalanx.errors import UserError

DEFAULT_URL = "http://localhost:7000"
"""The address of a control plane in the dashboards as they are in the package."""
PROMETHEUS_IMAGE = "prom/prometheus:v3.8.0"
GRAFANA_IMAGE = "grafana/grafana:12.4.0"

_INSIDE = "/etc/phalanx"
_PROMETHEUS_PORT, _GRAFANA_PORT = 9090, 3000
_RULES, _ALERTS = "rules/phalanx-aliases.yml", "rules/phalanx-alerts.yml"
_SLO = "rules/phalanx-slo.yml"
#: The label by which the sidecar of Grafana's Helm chart finds dashboards.
_FOR_GRAFANA = {"grafana_dashboard": "1"}
_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_NAMES = {"app.kubernetes.io/name": "phalanx"}


@dataclass(frozen=True, slots=True)
class WatchedPlatform:
    """The control plane that is watched: its address, the PEM text of its authority, its namespace."""

    url: str = DEFAULT_URL
    ca: str = ""
    namespace: str = "phalanx-system"

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UserError(
                f"{self.url!r} is not the address of a control plane",
                "give http://HOST:PORT or https://HOST:PORT",
            )
        if not _NAMESPACE.fullmatch(self.namespace):
            raise UserError(
                f"{self.namespace!r} is not the name of a namespace",
                "give small letters, digits and hyphens, 63 at most",
            )

    @property
    def target(self) -> str:
        """Host and port, as Prometheus names a target."""
        parts = urlsplit(self.url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
        return f"{host}:{port}"


def dashboard_texts() -> dict[str, str]:
    """The dashboards of the package, by the names of their files."""
    folder = resources.files("phalanx.monitoring") / "dashboards"
    found = (one for one in folder.iterdir() if one.name.endswith(".json"))
    return {one.name: one.read_text(encoding="utf-8") for one in sorted(found, key=str)}


def bundle(watched: WatchedPlatform) -> dict[str, str]:
    """The text of every file, by its path in the folder."""
    found: dict[str, str] = {}
    for kind in KINDS:
        found |= kind(watched)
    return found


def dashboards(watched: WatchedPlatform) -> dict[str, str]:
    """The dashboards, with links that lead to this control plane."""
    found = {}
    for name, text in dashboard_texts().items():
        board = json.loads(text)
        for variable in board["templating"]["list"]:
            if variable["name"] == "url":
                variable["query"] = watched.url.rstrip("/")
        found[f"dashboards/{name}"] = json.dumps(board, indent=1, ensure_ascii=False) + "\n"
    return found


def provisioning(watched: WatchedPlatform) -> dict[str, str]:
    """What Grafana reads at its start: the data source, and where the dashboards are."""
    source = {
        "name": "Prometheus",
        "uid": "prometheus",
        "type": "prometheus",
        "access": "proxy",
        "url": f"http://localhost:{_PROMETHEUS_PORT}",
        "isDefault": True,
    }
    provider = {
        "name": "phalanx",
        "folder": "Phalanx",
        "type": "file",
        "options": {"path": f"{_INSIDE}/dashboards"},
    }
    return {
        "provisioning/datasources/prometheus.yaml": _yaml(
            {"apiVersion": 1, "datasources": [source]}
        ),
        "provisioning/dashboards/phalanx.yaml": _yaml({"apiVersion": 1, "providers": [provider]}),
    }


def rules(watched: WatchedPlatform) -> dict[str, str]:
    """Recording rules of Prometheus: names that other platforms have, indicators and objectives."""
    return {_RULES: _yaml(rule_file()), _SLO: _yaml(slo_rule_file())}


def alerts(watched: WatchedPlatform) -> dict[str, str]:
    """Alerting rules of Prometheus, and an example of the routes of Alertmanager."""
    return {
        _ALERTS: _yaml(_alert_rules(watched)),
        "alertmanager.example.yml": _yaml(alertmanager_example()),
    }


def _alert_rules(watched: WatchedPlatform) -> dict[str, Any]:
    links = AlertLinks(
        dashboards=f"http://localhost:{_GRAFANA_PORT}", control_plane=watched.url.rstrip("/")
    )
    return alert_rules(links)


def scrape(watched: WatchedPlatform) -> dict[str, str]:
    """The configuration of Prometheus, and the authority of the control plane where there is one."""
    job: dict[str, Any] = {
        "job_name": "phalanx",
        "scheme": urlsplit(watched.url).scheme,
        "authorization": {"credentials_file": f"{_INSIDE}/token"},
        # Series of jobs have a label `job` of their own, which stays.
        "honor_labels": True,
        "static_configs": [{"targets": [watched.target]}],
    }
    found = {}
    if watched.ca:
        job["tls_config"] = {"ca_file": f"{_INSIDE}/ca.pem"}
        found["ca.pem"] = watched.ca
    config = {
        "global": {"scrape_interval": "15s", "evaluation_interval": "15s"},
        "rule_files": [f"{_INSIDE}/rules/*.yml"],
        "scrape_configs": [job],
    }
    return {"prometheus.yml": _yaml(config), **found}


def compose(watched: WatchedPlatform) -> dict[str, str]:
    """A compose file with Prometheus and Grafana, on the loopback interface of this machine."""
    prometheus = {
        "image": PROMETHEUS_IMAGE,
        "command": [
            "--config.file=/etc/prometheus/prometheus.yml",
            "--storage.tsdb.path=/prometheus",
            "--storage.tsdb.retention.time=30d",
            f"--web.listen-address=127.0.0.1:{_PROMETHEUS_PORT}",
        ],
        # So that a control plane on the loopback interface is reached.
        "network_mode": "host",
        "volumes": [
            "./prometheus.yml:/etc/prometheus/prometheus.yml:ro",
            f"./rules:{_INSIDE}/rules:ro",
            *([f"./ca.pem:{_INSIDE}/ca.pem:ro"] if watched.ca else []),
            "series:/prometheus",
        ],
        "secrets": [{"source": "token", "target": f"{_INSIDE}/token"}],
        "restart": "unless-stopped",
    }
    grafana = {
        "image": GRAFANA_IMAGE,
        "environment": {
            "GF_SERVER_HTTP_ADDR": "127.0.0.1",
            "GF_SERVER_HTTP_PORT": str(_GRAFANA_PORT),
            "GF_SECURITY_ADMIN_PASSWORD__FILE": "/run/secrets/grafana-password",
            "GF_ANALYTICS_REPORTING_ENABLED": "false",
            "GF_USERS_ALLOW_SIGN_UP": "false",
        },
        "network_mode": "host",
        "volumes": [
            "./provisioning:/etc/grafana/provisioning:ro",
            f"./dashboards:{_INSIDE}/dashboards:ro",
            "grafana:/var/lib/grafana",
        ],
        "secrets": ["grafana-password"],
        "depends_on": ["prometheus"],
        "restart": "unless-stopped",
    }
    document = {
        "name": "phalanx-monitoring",
        "services": {"prometheus": prometheus, "grafana": grafana},
        "volumes": {"series": {}, "grafana": {}},
        "secrets": {
            "token": {"file": "token"},
            "grafana-password": {"file": "grafana-password"},
        },
    }
    return {"compose.yaml": _yaml(document)}


def kubernetes(watched: WatchedPlatform) -> dict[str, str]:
    """Objects for the Prometheus operator and for the sidecar of Grafana's chart."""
    endpoint: dict[str, Any] = {
        "port": "api",
        "path": "/metrics",
        "scheme": "https",
        "interval": "15s",
        "honorLabels": True,
        "authorization": {"credentials": {"name": "phalanx-metrics", "key": "token"}},
        "tlsConfig": {
            "serverName": f"phalanx.{watched.namespace}.svc",
            "ca": {"secret": {"name": "phalanx-metrics", "key": "ca.pem"}},
        },
    }
    monitor = {
        **_kind("monitoring.coreos.com/v1", "ServiceMonitor", "phalanx", watched),
        "spec": {"selector": {"matchLabels": _NAMES}, "endpoints": [endpoint]},
    }
    rule_objects = [
        {**_kind("monitoring.coreos.com/v1", "PrometheusRule", name, watched), "spec": spec}
        for name, spec in (
            ("phalanx-aliases", rule_file()),
            ("phalanx-alerts", _alert_rules(watched)),
            ("phalanx-slo", slo_rule_file()),
        )
    ]
    maps = [
        {
            **_kind("v1", "ConfigMap", name.removesuffix(".json"), watched, _FOR_GRAFANA),
            "data": {name: text},
        }
        for name, text in (
            (path.rpartition("/")[2], text) for path, text in dashboards(watched).items()
        )
    ]
    return {
        "kubernetes/service-monitor.yaml": _yaml(monitor),
        "kubernetes/prometheus-rules.yaml": _yaml(_list(rule_objects)),
        "kubernetes/dashboards.yaml": _yaml(_list(maps)),
    }


def _list(objects: list[dict[str, Any]]) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "List", "items": objects}


def _kind(
    version: str,
    kind: str,
    name: str,
    watched: WatchedPlatform,
    labels: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    metadata = {
        "name": name,
        "namespace": watched.namespace,
        "labels": {**_NAMES, **(labels or {})},
    }
    return {"apiVersion": version, "kind": kind, "metadata": metadata}


def _yaml(document: Mapping[str, Any]) -> str:
    return yaml.safe_dump(document, sort_keys=False, width=10_000, allow_unicode=True)


KINDS: tuple[Callable[[WatchedPlatform], dict[str, str]], ...] = (
    dashboards,
    provisioning,
    rules,
    alerts,
    scrape,
    compose,
    kubernetes,
)
"""Every kind of file; each makes its own from the platform that is watched."""
