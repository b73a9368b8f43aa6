"""Files of the control plane that are kept in an object store."""
