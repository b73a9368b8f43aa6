"""The job spec: fields, sections, how it is read and validated."""
