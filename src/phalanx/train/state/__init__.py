"""The state of a run: what is saved, how it is read again, and where it is stored."""
