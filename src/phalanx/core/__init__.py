"""The pure heart: values in, values out.

No clock, no input or output, no logging, no pydantic, no framework. Time, randomness and ids are
arguments. What a rank imports (manifest and report records) lives here too, so this package needs
only the standard library.
"""
