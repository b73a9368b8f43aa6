"""The launcher of `framework: mpi`: Open MPI's own `mpirun` over exactly the nodes of the gang.

`__main__` is the one process of a node; on node rank 0 it runs `mpirun`. Where `mpirun` would call ssh to
start its daemon on another node, it calls `agent`, which has that node's process start it: no ssh, no
keys, no names of hosts. `rank` is what every MPI process passes through: it gives it the variables of
the other families, and then becomes the job's command.
"""
