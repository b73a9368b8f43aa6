"""The typed client of the HTTP API, with an injectable transport.

    with PhalanxClient(url, token) as client:
        num = client.submit(SubmitRequest(spec={...})).job.num
        client.job(num).state

Answers are models of `schemas.api`; errors are those of `phalanx.errors`, as the server raised them.
"""

from phalanx.sdk.client import PhalanxClient

__all__ = ["PhalanxClient"]
