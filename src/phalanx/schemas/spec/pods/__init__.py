"""The parts of a job spec for executors that run containers: volumes, and the section `kubernetes`.

`mounts` reads the sources of volumes, also for pool files; `section` has the keys of pods.
"""
