"""The program `phalanx`: the command line over the SDK.

Read `__main__` (exit codes and errors), `app` (the verbs), then a module of `verbs`, one for each noun.
`verbs` parse options and print; `client` holds what they need on the user's machine (session, code
snapshot, embedded control plane, following a job); `terminal` formats output. Imports point from `verbs`
to `client` to `terminal`. Verbs that need torch or the server run as child processes (`verbs.programs`).
"""
