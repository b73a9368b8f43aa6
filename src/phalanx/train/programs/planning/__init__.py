"""Planning of a script before it runs: memory and time of every layout, and the best one.

Here: the stand-in for a run that only looks, the measuring, the table. The arithmetic is in
`core.estimates`. Nothing here trains, talks to other ranks or writes to the disk.
"""
