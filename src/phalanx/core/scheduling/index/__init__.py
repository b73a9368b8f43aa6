"""Incremental indexes: free slots by domain, classes of equal queued jobs, running jobs by urgency.

Start with `cluster_index` (what happens to the cluster) and `topology` (where a gang fits). An index always
equals one rebuilt from the same facts; decisions of a pass do not belong here.
"""
