"""The gRPC API: a thin front of the REST API in the same process.

`calls` makes a request of REST from a message, and a message from its answer; `exchange` has the HTTP
application serve it without a socket; `statuses` turns errors into statuses of gRPC; `service` has the
methods, and `listener` the port. Every call passes the gate, so tokens, permissions, limits and the audit
log are those of REST: nothing here decides. Only this package imports grpc, which is an extra.
"""
