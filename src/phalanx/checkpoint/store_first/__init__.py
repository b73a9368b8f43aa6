"""Checkpoints of nodes that share no folder: they are committed in the object store.

Every rank uploads its own part; rank 0 writes the manifest, on the condition that there is none. What lies
in the folders of the nodes is a cache. `operations` runs in the process that has the store's client, `tier`
is a rank's side of it, `near_files` reads files that are fetched as far as they are needed.
"""
