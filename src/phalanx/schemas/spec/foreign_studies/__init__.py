"""Searches written for other tools, as study specs: each key is mapped, dropped with a reason, or refused.

`shapes` tells by its keys what a document is written for; `reading` reads a document so that no key can be
ignored; `plain`, `determined`, `katib`, `wandb` and `tune` are one tool each. All are functions of plain
data, and raise nothing but SpecInvalid.
"""
