"""Background loops: scheduling, dispatch, timers, polling, draining and retention."""
