"""Messages between control plane and supervisors, and the assignment of a supervisor."""
