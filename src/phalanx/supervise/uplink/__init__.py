"""The connection to the control plane: sync, spool, bulk data, reports of earlier attempts."""
