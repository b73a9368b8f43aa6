"""Schedules: which due times start jobs and which are left out. Pure.

`policy` decides from due times and the policies of a schedule. Cron expressions are read in
`services/schedules`, because their library is not part of the standard library.
"""
