"""Small tools without domain knowledge: clocks and backoff, text and labels, units, garbage collection.

A function is admitted only when it could be used outside Phalanx unchanged. This package imports the
standard library and nothing else.
"""
