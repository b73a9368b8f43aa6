"""A rank that sends its metrics over gRPC, and ends when the control plane says so."""

import os
import queue

import grpc

from phalanx.schemas.rpc import jobs_pb2, jobs_pb2_grpc


class Reporter:
    """One stream of metrics. `report` returns whether to save and exit now."""

    def __init__(self, address, token):
        self._channel = grpc.insecure_channel(address)
        self._sent = queue.SimpleQueue()
        stub = jobs_pb2_grpc.JobsStub(self._channel)
        metadata = [("authorization", f"Bearer {token}")]
        self._answers = stub.ReportMetrics(iter(self._sent.get, None), metadata=metadata)

    def report(self, step, **values):
        message = jobs_pb2.MetricsRequest()
        for name, value in values.items():
            message.points.add(name=name, step=step, value=value)
        self._sent.put(message)
        return next(self._answers).stop

    def close(self):
        self._sent.put(None)
        for _ in self._answers:
            pass
        self._channel.close()


def main():
    reporter = Reporter(os.environ["GRPC_ADDRESS"], os.environ["PHALANX_METRICS_TOKEN"])
    loss, weight = 0.0, 0.0
    for step in range(200):
        gradient = 2 * (weight - 3.0)
        weight -= 0.05 * gradient
        loss = (weight - 3.0) ** 2
        if reporter.report(step, loss=loss):
            print(f"told to stop at step {step}")
            break
    reporter.close()
    print(f"loss {loss:.6f}")


if __name__ == "__main__":
    main()
