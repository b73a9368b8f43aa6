"""Search methods: an event in, actions out, with snapshot and restore.

Empty until studies are built; nothing else may be put here.
"""
