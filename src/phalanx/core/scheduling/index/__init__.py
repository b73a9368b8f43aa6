"""The incremental indexes of the cluster: free slots, topology, running jobs, fragmentation."""
