"""What users do to a job after its submission.

`settings` changes its priority, labels, limits and pools, `clone` submits it again.
"""
