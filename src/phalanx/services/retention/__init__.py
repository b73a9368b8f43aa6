"""Retention: archive, pin and delete jobs, and delete what is older than its retention period.

`marks` archives and pins, `deletion` decides whether a job may go and deletes its row, `places` says where
its files are, `files` deletes them there, and `work` is the step that completes what was begun.
`expiry` begins what a retention period demands, and `log_quota` deletes output above the quota.
"""
