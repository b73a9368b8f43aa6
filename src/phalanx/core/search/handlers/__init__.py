"""The cells of the study machine's table.

Each handler changes a draft, or returns why the event has no effect: `suggestions` for params,
`lives` for what happens to the jobs of trials, `requests` for what users ask of the study and its clock.
"""
