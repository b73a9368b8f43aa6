"""Output for people and programs, and the options that verbs share.

`output` prints tables, facts and JSON; `screen` shows a followed job; `roles` formats roles; `options`
declares shared arguments; `bench_plot` draws scaling. Nothing here talks to a control plane.
"""
