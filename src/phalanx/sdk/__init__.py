"""The typed client of the REST API, with an injectable transport.

    with PhalanxClient(url, token) as client:
        num = client.submit(SubmitRequest(spec={...})).job.num
        client.job(num).state

Results are models of `schemas.api`; errors are those of `phalanx.errors`, as the server raised them.
`client` joins the parts: `jobs` and `resources` hold one method for each route, `transport` holds the
connection. Nothing here prints, and nothing imports the server.
"""

from phalanx.sdk.client import PhalanxClient

__all__ = ["PhalanxClient"]
