"""The gRPC API: its methods (`methods`), and what `scripts/generate_grpc.py` writes from them.

`jobs.proto` has the messages, made from the models of `schemas.api`; field numbers that it once gave stay.
`jobs_pb2` and `jobs_pb2_grpc` are generated from it and need the extra `grpc`; `methods` does not.
"""
