"""Other schedulers, written anew behind the production seam, so that a comparison is like for like.

They use the same index, the same stopping and restarting, the same holes; only the policy differs.
"""
