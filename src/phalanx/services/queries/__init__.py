"""Read-only views of jobs for the API, the pages and Prometheus.

`views` shows jobs, events and checkpoints, `lineage` what restarts cost and which samples were
consumed, `logs` and `metrics` what the ranks wrote, `feed` the news of all jobs since the last
read. `stacks`, `profiles` and `saves` also send their request to the ranks. Each function reads in one
transaction; nothing here changes a job otherwise.
"""
