"""The built-in notifier: evaluates the table of alerts, makes messages, and delivers them.

`evaluation` and `delivery` are the steps of two loops of the leader; `transports` sends.
"""
