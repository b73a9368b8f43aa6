"""The client's side of TLS, with the standard library alone: which certificates are accepted, and errors.

Used by the SDK, by supervisors and on Ray nodes. Certificates are made in `standalone.certificates` and
served by `server.tls`.
"""
