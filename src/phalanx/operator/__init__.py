"""The operator: objects of a Kubernetes cluster that people apply, served as jobs of a control plane.

Reading order: `kinds` (what a kind of objects is), `pytorchjobs` and `managed_jobs` (their fields and their
status), `submission` (all kinds, and an object as a job spec), `control_plane` (the jobs of objects, over
the public API), `cluster` (the objects, their events and pods), `reconciler` (one look at one object),
`work_queue` and `program` (when to look). The decisions are those of `core.serving`. The operator keeps no
state: that is in the labels of the jobs and in the status of the objects. See `docs/dev/operator.md`.
"""
