"""Job templates: store and show them, and submit the jobs that they describe."""
