"""Send one message: as a signed webhook, as text for Slack, or as mail."""

from __future__ import annotations

import json
import smtplib
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from email.message import EmailMessage
from enum import StrEnum
from typing import Protocol

from phalanx.core.notify.signing import signed_headers
from phalanx.errors import PlatformError
from phalanx.kit.text import shorten
from phalanx.services.guarded_http import TIMEOUT_S, GuardedHttp
from phalanx.services.notify.config import ChannelKind, MailConfig, ReceiverConfig
from phalanx.services.notify.messages import title_and_text
from phalanx.store.notify.deliveries import Delivery

_GONE = 410
_AGENT = "phalanx-notifier"


class SendOutcome(StrEnum):
    """What a try came to."""

    SENT = "sent"
    FAILED = "failed"  # try again later
    GONE = "gone"  # the receiver wants nothing any more


@dataclass(frozen=True, slots=True)
class SendResult:
    """The outcome of a try, and what was wrong."""

    outcome: SendOutcome
    message: str = ""


class MessageSender(Protocol):
    """Sends a message to a receiver. `at_s` is the time in its signature."""

    def __call__(self, receiver: ReceiverConfig, one: Delivery, at_s: int, /) -> SendResult:
        """Try once; never raises for what a receiver does."""
        ...


@dataclass(frozen=True, slots=True)
class Transports:
    """The sender of a control plane."""

    http: GuardedHttp
    mail: MailConfig | None = None
    open_mail: Callable[[MailConfig], smtplib.SMTP] = lambda config: smtplib.SMTP(
        config.host, config.port, timeout=TIMEOUT_S
    )

    def __call__(self, receiver: ReceiverConfig, one: Delivery, at_s: int) -> SendResult:
        """Try once, by the way of the receiver."""
        try:
            match receiver.kind:
                case ChannelKind.WEBHOOK:
                    return self._webhook(receiver, one, at_s)
                case ChannelKind.SLACK:
                    return self._slack(receiver, one)
                case ChannelKind.MAIL:
                    return self._mail(receiver, one)
        except PlatformError as error:
            return SendResult(SendOutcome.FAILED, shorten(error.message, 300))
        except (OSError, smtplib.SMTPException, ValueError) as error:
            return SendResult(SendOutcome.FAILED, _trouble(error))

    def _webhook(self, receiver: ReceiverConfig, one: Delivery, at_s: int) -> SendResult:
        body = one.body.encode()
        headers = signed_headers(receiver.keys(), one.id, at_s, body)
        return self._post(receiver, body, dict(headers))

    def _slack(self, receiver: ReceiverConfig, one: Delivery) -> SendResult:
        title, text = title_and_text(one.body)
        # Slack reads <, > and & as markup: mentions of a whole channel among them.
        said = f"{title}\n{text}".replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
        return self._post(receiver, json.dumps({"text": said[:3000]}).encode(), {})

    def _post(self, receiver: ReceiverConfig, body: bytes, headers: dict[str, str]) -> SendResult:
        given = {"content-type": "application/json", "user-agent": _AGENT, **headers}
        answer = self.http.post(receiver.url(), body, given)
        if 200 <= answer.status < 300:
            return SendResult(SendOutcome.SENT)
        said = f"the receiver answered {answer.status}: {shorten(answer.text, 200)}"
        outcome = SendOutcome.GONE if answer.status == _GONE else SendOutcome.FAILED
        return SendResult(outcome, said)

    def _mail(self, receiver: ReceiverConfig, one: Delivery) -> SendResult:
        config = self.mail
        if config is None:
            return SendResult(SendOutcome.FAILED, "no mail server is configured")
        title, text = title_and_text(one.body)
        message = EmailMessage()
        message["Subject"] = f"[Phalanx] {title}"
        message["From"] = config.sender
        message["To"] = ", ".join(receiver.mail)
        # The same over all tries, so that a mail that came twice can be told.
        message["Message-ID"] = f"<{one.id}@phalanx>"
        message.set_content(text + "\n")
        with self.open_mail(config) as server:
            if config.starttls:
                server.starttls(context=ssl.create_default_context())
            if config.user:
                server.login(config.user, config.password())
            refused = server.send_message(message)
        # To send it again would send it twice to the other addresses.
        return SendResult(SendOutcome.SENT, _refusals(refused) if refused else "")


def _trouble(error: Exception) -> str:
    """What was wrong with a try, for operators."""
    match error:
        case smtplib.SMTPRecipientsRefused():
            said = _refusals(error.recipients)
        case smtplib.SMTPResponseException():
            said = f"the mail server answered {_answer(error.smtp_code, error.smtp_error)}"
        case _:
            said = str(error) or type(error).__name__
    return shorten(said, 300)


def _refusals(refused: Mapping[str, tuple[int, bytes]]) -> str:
    every = (f"{address}: {_answer(*answer)}" for address, answer in sorted(refused.items()))
    return shorten(f"the mail server refused {'; '.join(every)}", 300)


def _answer(code: int, text: bytes | str) -> str:
    return f"{code} {text.decode(errors='replace') if isinstance(text, bytes) else text}"
