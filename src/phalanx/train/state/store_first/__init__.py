"""Nodes that share no folder: how ranks find that out, save, and resume from the object store."""
