"""Many jobs in one request, all or nothing: batches, and the elements of arrays."""
