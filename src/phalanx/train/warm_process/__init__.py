"""The warm process: a Python process that has imported torch and forks ranks.

`fork_server` is the process: it serves the supervisor's messages and turns a forked child into a rank.
`main_module` runs the rank's script or module inside the real `__main__`. No tensor operation, no thread
and no connection may be here: a fork copies one thread, and the locks of all. See
`docs/dev/warm-process.md`.
"""
