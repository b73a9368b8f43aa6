"""What a verb needs on the user's side: invocation, session, snapshot, embedded control plane."""
