"""The planner's host: cache, input, admission, one scheduling step, explanations."""
