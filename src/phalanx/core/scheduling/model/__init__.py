"""Values of the planner: its input and its plan, learned durations, urgency, entitlement and past use.

Start with `planning_input` and `outcome`. Only values and arithmetic; no index and no search.
"""
