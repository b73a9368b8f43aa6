"""Traces of jobs: identifiers, spans made of stored events, and their form in OpenTelemetry's JSON.

`identity` names traces and spans, `spans` makes spans of events, `otlp` writes them. Everything is pure:
the same events give the same spans with the same identifiers, so spans may be sent twice. May not live
here: reading events, sending anything.
"""
