"""The domain logic of Phalanx as pure functions and values, without I/O.

No clock, no input or output, no logging, no pydantic, no framework. Time, randomness and ids are
arguments. What a rank imports (manifest and report records) lives here too, so this package needs
only the standard library.
"""
