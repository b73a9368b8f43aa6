"""What the planner reads and answers: snapshot, plan, reservations, durations, eviction costs."""
