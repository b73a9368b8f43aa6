"""Hyperparameter search: studies decide about their trials, which are ordinary jobs.

`submit` checks and stores a study, `requests` are what users ask of one. `step` is the loop: `facts` turns
what happened to trials' jobs into events, `commit` decides and writes them, `commands` carries out what
was decided. `suggestions` is a loop of its own, because a sampler may take long.
"""
