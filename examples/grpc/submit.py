"""Submit a job over gRPC and follow it to its end.

    phalanx up --grpc-port 50051
    python examples/grpc/submit.py 127.0.0.1:50051

The token is read from PHALANX_TOKEN, else from the home of the control plane.
"""

import os
import sys
from pathlib import Path

import grpc
import yaml

from phalanx.schemas.rpc import jobs_pb2, jobs_pb2_grpc

HERE = Path(__file__).resolve().parent


def token() -> str:
    home = Path(os.environ.get("PHALANX_HOME", Path.home() / ".phalanx"))
    return os.environ.get("PHALANX_TOKEN") or (home / "token").read_text().strip()


def follow(stub, metadata, num):
    """Print events until the job has ended; after a lost connection, go on behind the last one."""
    place, state = "", ""
    while True:
        wanted = jobs_pb2.EventsRequest(num=num, place=place)
        try:
            for message in stub.Events(wanted, metadata=metadata):
                place, state = message.place, message.event.state
                print(f"j-{num} {message.event.kind}: {state}", flush=True)
            return state
        except grpc.RpcError as error:
            if error.code() is not grpc.StatusCode.UNAVAILABLE:
                raise


def main(address):
    metadata = [("authorization", f"Bearer {token()}")]
    spec = yaml.safe_load((HERE / "job.yaml").read_text())
    # The job runs in this folder, and its ranks send their metrics to the same port.
    spec["run"] = [sys.executable, str(HERE / "report.py")]
    spec["env"] = {"GRPC_ADDRESS": address}
    with grpc.insecure_channel(address) as channel:
        stub = jobs_pb2_grpc.JobsStub(channel)
        request = jobs_pb2.SubmitRequest()
        request.spec.update(spec)
        job = stub.Submit(request, metadata=metadata, timeout=30).job
        print(f"submitted {job.label}: {job.url}", flush=True)
        return follow(stub, metadata, job.num)


if __name__ == "__main__":
    print(main(sys.argv[1]))
