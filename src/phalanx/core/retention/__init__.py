"""Retention: how long data of ended jobs is kept, and what prevents that it is deleted.

`policy` has the periods and when they end, `holds` the reasons for which a job must stay, `checkpoints`
the choice among the checkpoints of a job that has ended.
"""
