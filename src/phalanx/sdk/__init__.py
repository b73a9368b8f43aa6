"""The typed client of the REST API, with an injectable transport.

    with PhalanxClient(url, token) as client:
        num = client.submit(SubmitRequest(spec={...})).job.num
        client.job(num).state

Results are models of `schemas.api`; errors are those of `phalanx.errors`, as the server raised them.
`client` holds the methods about the platform, `jobs` those about jobs, `transport` the connection. Nothing
here prints, and nothing imports the server.
"""

from phalanx.sdk.client import PhalanxClient

__all__ = ["PhalanxClient"]
