"""Measurements inside a rank, written to its report.

`timing` (sections of every step) comes first; `devices` and `communication` add probes to it. `stragglers`
compares the ranks' compute times. `profiling` measures a few steps on request, and traces them with
`tracing`. A measurement never changes a result, and makes no collective except where it says so.
"""
