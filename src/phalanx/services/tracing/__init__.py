"""Traces of jobs: `reading` makes them for the API, `export` sends them to an OpenTelemetry endpoint."""
