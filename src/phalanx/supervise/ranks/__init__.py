"""One generation of ranks on one node.

`generation` starts the ranks, watches them and ends them together; `rank` is one rank's process with its
files; `records` reads what ranks report; `stall_monitor` and `stacks` find hung ranks; `grace_period`
limits the time for a stop; `checkpoint_folder` commits the folder of a script that saves by itself.
"""
