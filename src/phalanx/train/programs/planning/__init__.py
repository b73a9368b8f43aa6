"""What a script will need, before it runs: memory and time of every layout, and which to take.

Here: the stand-in for a run that only looks, the measuring, the table. The arithmetic is in
`core.estimates`. Nothing here trains, talks to other ranks or writes to the disk.
"""
