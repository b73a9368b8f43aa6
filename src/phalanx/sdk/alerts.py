"""The routes about alerts of the built-in notifier."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal
from urllib.parse import quote

import httpx

from phalanx.schemas.api.health.alerts import (
    AlertsView,
    DeliveryView,
    ReceiverView,
    SilenceRequest,
    SilenceView,
)
from phalanx.sdk.transport import V1, Transport


class AlertCalls(Transport):
    """One method for each route about alerts; `client.alerts`, on the connection of the client."""

    def __init__(self, url: str, http: httpx.Client) -> None:
        self.url, self._http = url, http

    def live(self) -> AlertsView:
        """Alerts that are pending, firing or were resolved within a day, and the receivers."""
        return self._get(f"{V1}/alerts", AlertsView)

    def silences(self) -> list[SilenceView]:
        """The silences that are not over."""
        return self._get(f"{V1}/alerts/silences", list[SilenceView])

    def silence(
        self, matchers: Mapping[str, str], duration_s: float, comment: str = ""
    ) -> SilenceView:
        """Silence alerts by labels, `alertname` or `severity`. Needs the scope admin."""
        body = SilenceRequest(matchers=dict(matchers), duration_s=duration_s, comment=comment)
        return self._post(f"{V1}/alerts/silences", body, SilenceView)

    def end_silence(self, num: int) -> None:
        """End a silence. Raises NotFound."""
        self._delete(f"{V1}/alerts/silences/{num}")

    def deliveries(
        self, state: Literal["all", "open", "sent", "dead"] = "all", *, limit: int = 100
    ) -> list[DeliveryView]:
        """The newest messages to receivers. Needs the scope admin."""
        params = {"state": state, "limit": limit}
        return self._get(f"{V1}/alerts/deliveries", list[DeliveryView], params)

    def resend(self, num: int) -> DeliveryView:
        """Send a message again that was given up. Raises NotFound, and UserError for one that was taken."""
        return self._post(f"{V1}/alerts/deliveries/{num}/resend", None, DeliveryView)

    def enable(self, receiver: str) -> ReceiverView:
        """Send to a receiver again that has answered that it is gone. Raises NotFound."""
        path = f"{V1}/alerts/receivers/{quote(receiver, safe='')}/enable"
        return self._post(path, None, ReceiverView)

    def test(self, receiver: str) -> DeliveryView:
        """Send a message to a receiver that only shows that messages arrive. Raises NotFound."""
        path = f"{V1}/alerts/receivers/{quote(receiver, safe='')}/test"
        return self._post(path, None, DeliveryView)
