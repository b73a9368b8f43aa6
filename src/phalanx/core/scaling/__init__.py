"""Autoscaling: which nodes a pool asks its cluster for, and which ones it gives back.

`model` holds the policy of a pool, its state and its decisions; `demand` finds the gangs that would start
if there were more nodes, by a plan of the scheduler itself; `future` are nodes that could come; `limits`
says how many of them a pool may ask for; `growth` and `release` decide; `step` puts them together. Nothing
here reads a clock or does any input or output: `services.planning.scaling` feeds it and passes what it
decides to the executor.
"""
