"""Probe jobs: the step that submits them, and what the newest ones show of each pool.

A probe is an ordinary job: nothing here starts a process, and nothing is stored beside the job.
"""
