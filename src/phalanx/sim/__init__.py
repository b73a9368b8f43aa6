"""A discrete-event cluster that drives the production planner on a virtual clock, in memory.

`engine` runs events, `costs` says what starts, saves, restarts and bad placements take, `traces` and
`workloads` supply jobs, `peers` are other schedulers behind the seam that the production planner sits
behind too, `report` turns a run into figures. Nothing here is imported by the control plane.
"""
