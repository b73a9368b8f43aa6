"""The life of a job: submit, commit, dispatch, poll, supervisors' reports, retention."""
