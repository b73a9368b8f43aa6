"""What ranks and the platform measure: instruments, reports, profiles, traces, line patterns."""
