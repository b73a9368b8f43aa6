"""The loops of the senders of output: one each, so that an endpoint that fails stops no other."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from phalanx.launch.tls.trust import client_context
from phalanx.server.context import Context
from phalanx.server.loops.runner import ServiceLoop
from phalanx.services.guarded_http import GuardedHttp
from phalanx.services.logs.endpoints import ANSWER_BYTES, LogEndpoints, SenderConfig
from phalanx.services.logs.sending import SendingProgress, sending_step
from phalanx.services.platform import Platform

_SETTING = "PHALANX__LOG_SENDERS__ALLOW_PRIVATE"


def log_sender_loops(context: Context, platform: Platform) -> tuple[ServiceLoop, ...]:
    """A loop for each sender of the settings.

    They keep nothing but where no output waits: another leader goes on from the database.
    """
    config = context.log_senders
    if not config.senders:
        return ()
    http = replace(
        GuardedHttp(config.allow_private, context.clock.monotonic, client_context("")),
        setting=_SETTING,
        most_bytes=ANSWER_BYTES,
    )
    send = LogEndpoints(http, config.cluster, platform.may_act)
    tick_s = context.settings.log_senders.tick_s

    def loop(one: SenderConfig) -> ServiceLoop:
        progress = SendingProgress()
        step = partial(sending_step, platform, one, send, progress)
        return ServiceLoop(f"log sender {one.name}", step, (), tick_s, needed=False)

    return tuple(loop(one) for one in config.senders)
