"""Log users in over OpenID Connect: the control plane is the client of one identity provider.

`provider` asks the provider and keeps its document and its keys, `id_tokens` checks what it signed,
`sealed` lets a client carry a login that has begun, and `flows` has the steps: a code that is entered on
another device (RFC 8628), or a browser that comes back (RFC 8252) to a command or to the pages. A login
ends in a token of Phalanx; tokens of the provider are neither shown nor stored.

Authlib and joserfc are imported when a user logs in: they take longer to load than the rest of a control
plane.
"""
