"""The node's side of tunnels: commands in the environment of a rank, and connections to its ports.

`calls` talks to the control plane, outward only; `commands` runs one command, `ports` connects to the
loopback of the node; `doorway` starts them when the orders say that a tunnel waits. What a tunnel runs is
killed with the generation, as every process below the supervisor.
"""
