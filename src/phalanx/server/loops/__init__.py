"""Background loops: scheduling, dispatch, timers, polling, draining and retention.

`steps` lists the loops with the topics that trigger them; `runner` runs them, with back-off after
an error, and ends an idle control plane.
"""
