"""The launcher of `framework: ray`: a Ray cluster per job, of exactly the nodes of its gang.

`__main__` is the one rank of a node: it starts the raylet, and on node rank 0 the head and the user's
script. `train.gathering` is how those ranks find one another and end together; `hooks` is what runs in the
processes of the script: it tells what `ray.train.report` and `ray.tune.report` say. The cluster lives and
dies with the ranks, so nothing of it can survive the job, and no other job can take its resources.
"""
