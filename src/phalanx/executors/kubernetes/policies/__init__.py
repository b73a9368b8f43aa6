"""What keeps a job's pods out of a pool: the pool file, the nodes, claims, and the policies of the cluster.

`admission` asks, `refusals` reads the answers of the API server.
"""
