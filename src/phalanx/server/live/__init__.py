"""Live views: answers that go on, as server-sent events.

`event_stream` sends what a source reads, and ends the stream when its caller may no longer see it; `routes`
has the routes. What a source reads is made by `services.queries.live`. A stream holds a place in the
database and nothing else: a client that reads slowly is sent less often, and nothing is kept for it.
"""
