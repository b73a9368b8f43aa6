"""Small, domain-free tools: clock, units, ids, backoff.

A thing is admitted only when it could be lifted out of Phalanx unchanged. Imports the standard
library and nothing else.
"""
