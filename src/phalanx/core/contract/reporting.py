"""How a script without the library reports metrics: its token, and the variables that a rank has for it.

The token names one node of one generation, and is derived from the token of the attempt's supervisors. It
permits to add metrics of that node's ranks, and nothing else; that of a generation that is over adds none.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass

METRICS_URL = "PHALANX_METRICS_URL"
METRICS_TOKEN = "PHALANX_METRICS_TOKEN"
METRICS_CA = "PHALANX_METRICS_CA"
_URL, _TOKEN_FILE, _CA_FILE = (
    f"KUBEFLOW_TRAINER_SERVER_{name}" for name in ("URL", "TOKEN", "CA_CERT")
)
VARIABLES = {
    METRICS_URL: "where this rank sends metrics with `POST`",
    METRICS_TOKEN: "the bearer token for that, valid in this generation",
    METRICS_CA: "file with the only authority of certificates to trust there; absent: the system's",
    _URL: "where the `Trainer` of transformers reports its progress and metrics",
    _TOKEN_FILE: "file with the same token",
    _CA_FILE: "the file with the authority once more",
}
"""The variables of every rank, with their meanings."""
_PURPOSE = "metrics"
_NUM_NUMBERS = (4, 5)
_MOST_DIGITS = 18


@dataclass(frozen=True, slots=True)
class ReportingPlace:
    """The node of a generation that a token permits to report for."""

    job: int
    attempt: int
    generation: int
    node_rank: int
    incarnation: int = 0  # number of supervisors that the node rank had before in the attempt

    def token(self, supervisor_token: str) -> str:
        """The token, derived from that of the attempt's supervisors."""
        numbers = f"{self.job}.{self.attempt}.{self.generation}.{self.node_rank}"
        if self.incarnation:
            numbers = f"{numbers}.{self.incarnation}"
        text = f"{_PURPOSE}/{numbers}".encode()
        return f"{numbers}.{hmac.new(supervisor_token.encode(), text, hashlib.sha256).hexdigest()}"

    @classmethod
    def named_by(cls, token: str) -> ReportingPlace | None:
        """The place that a token names, which does not prove that the token is right; None: no token."""
        *numbers, mark = token.split(".")
        plain = all(one.isascii() and one.isdigit() for one in numbers)
        if len(numbers) not in _NUM_NUMBERS or not plain or not mark:
            return None
        if any(len(one) > _MOST_DIGITS for one in numbers):
            return None
        return cls(*(int(one) for one in numbers))


def reporting_variables(
    url: str, job: int, rank: int, token: str, token_file: str, ca_file: str | None = None
) -> dict[str, str]:
    """The variables of one rank; `ca_file` has the authority to trust, for an address with TLS."""
    base = f"{url.rstrip('/')}/api/v1/jobs/{job}"
    found = {
        METRICS_URL: f"{base}/metrics?rank={rank}",
        METRICS_TOKEN: token,
        _URL: f"{base}/trainer-status?rank={rank}",
        _TOKEN_FILE: token_file,
    }
    return found if ca_file is None else {**found, METRICS_CA: ca_file, _CA_FILE: ca_file}
