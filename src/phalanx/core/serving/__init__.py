"""Objects of Kubernetes that are served as jobs: their conditions, what is done with the job, and events.

`conditions` has the rules by which conditions replace each other; `life` decides what to do for an object
and describes its job as the status of a PyTorchJob; `batch` describes it as that of a JobSet or a Job.
Everything is a function of values and of the time; `phalanx.operator` reads and writes the objects.
"""
