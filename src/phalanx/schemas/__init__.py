"""What crosses a process border, as versioned pydantic models.

Job and pool specs, REST bodies and supervisor messages. Each model that mirrors a core value carries
`to_core()` / `from_core()`.
"""
