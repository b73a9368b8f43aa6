"""Bodies about how well the platform does: objectives of job classes."""
