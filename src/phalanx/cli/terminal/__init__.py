"""What a terminal shows: tables, live progress, exit codes, shared options."""
