"""One rank among others: its environment, process groups, agreement, preflight, stopping, report."""
