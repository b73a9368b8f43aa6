"""Bodies of the REST API, version 1, as pydantic models.

`body` holds the two base models, `RequestBody` (unknown keys are errors) and `ResponseBody` (unknown keys
are ignored, so that an older client accepts a newer server), the form of times, errors and the server's
state. The other modules hold the bodies of one subject each: `jobs`, `telemetry`, `pools`, `why`. Durations
are in seconds and sizes in bytes. Nothing here reads the store or the planner's values: `services`
builds the responses.
"""
