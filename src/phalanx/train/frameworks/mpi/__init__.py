"""The launcher of `framework: mpi`: Open MPI's own `mpirun` over exactly the nodes of the gang.

`__main__` is the one process of a node; on node rank 0 it runs `mpirun`. Where `mpirun` would call ssh to
start its daemon on another node, it calls `__main__ --call-node`, and that node's process starts it: no
ssh, no keys, no names of hosts. Every MPI process begins as `rank`, which sets the variables of the other
frameworks and then becomes the job's command.
"""
