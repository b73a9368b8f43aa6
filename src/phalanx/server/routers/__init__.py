"""HTTP routes: each parses a request, calls one service and returns its view."""
