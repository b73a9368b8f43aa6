"""The commands of the compose file run as processes: a job trains, and Prometheus has its series."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
import yaml

from phalanx.launch.ports import free_port
from support.databases import PostgresServer
from support.s3 import RCLONE, needs_s3
from support.waiting import wait_until

ROOT = Path(__file__).parents[2]
COMPOSE = ROOT / "deploy" / "compose"
SERVICES = yaml.safe_load((COMPOSE / "compose.yaml").read_text())["services"]
BIN = Path(sys.executable).parent
PROMETHEUS = shutil.which("prometheus")

pytestmark = [
    pytest.mark.integration,
    pytest.mark.extras,
    needs_s3,
    pytest.mark.skipif(PROMETHEUS is None, reason="needs prometheus: apt-get install prometheus"),
]

SCRIPT = """
import time
import phalanx.train as pt
import torch

run = pt.init()
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.utils.data.TensorDataset(torch.ones(64, 2))
loader = torch.utils.data.DataLoader(data, batch_size=8)
model, optimizer, loader = run.prepare(model, optimizer, loader)
for epoch in run.epochs(100_000):
    for (batch,) in loader:
        loss = model(batch).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        run.log(loss=loss)
        time.sleep(0.02)
"""


class Stack:
    """The services of the compose file as processes, with paths and ports of this machine."""

    def __init__(self, folder):
        self.folder = folder
        self.ports = {"control-plane": free_port(), "store": free_port(), "prometheus": free_port()}
        self.running = []
        self.paths = {
            "/home/phalanx/data": folder / "data",
            "/scrape": folder / "scrape",
            "/etc/phalanx/token": folder / "scrape" / "token",
            "/etc/phalanx/ca.pem": folder / "scrape" / "ca.pem",
            "/etc/prometheus": folder,
            "/prometheus": folder / "series",
            "/run/secrets": folder / "secrets",
        }
        if folder.exists():
            for name in ("data", "scrape", "series", "objects"):
                (folder / name).mkdir()

    def here(self, text):
        """Text of the compose file with the paths and ports of this machine."""
        longest_first = sorted(self.paths, key=len, reverse=True)
        pattern = f"({'|'.join(longest_first)})(?![\\w.-])"
        text = re.sub(pattern, lambda found: str(self.paths[found[0]]), text)
        text = text.replace(":9000", f"127.0.0.1:{self.ports['store']}")
        port = str(self.ports["control-plane"])
        return text.replace("control-plane:7000", f"localhost:{port}").replace("7000", port)

    def command(self, name):
        """The command of a service."""
        words = SERVICES[name]["command"]
        return [self.here(str(word)) for word in words]

    def environment(self, name):
        """The environment of a service, that of its files included."""
        values = {
            key: self.here(value) for key, value in SERVICES[name].get("environment", {}).items()
        }
        for file in SERVICES[name].get("env_file", []):
            for line in (self.folder / file).read_text().splitlines():
                key, _, value = line.partition("=")
                values[key] = value.strip("'")  # as compose reads the file
        kept = ("PATH", "LANG", "LD_LIBRARY_PATH", "COVERAGE_PROCESS_START")
        return {
            **{key: os.environ[key] for key in kept if key in os.environ},
            "HOME": str(self.folder),
            **values,
        }

    def start(self, name, words):
        """Start a service that stays."""
        with (self.folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                words, env=self.environment(name), stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        self.running.append(process)
        return process

    def stop(self):
        """End all services, the newest first."""
        for process in reversed(self.running):
            process.terminate()
            process.wait(60)


@pytest.fixture
def stack(tmp_path):
    made = Stack(tmp_path)
    shutil.copy(COMPOSE / "prepare.sh", tmp_path)
    subprocess.run(["sh", tmp_path / "prepare.sh"], check=True, capture_output=True)
    database = PostgresServer()
    url = database.create("compose", empty=True)
    (tmp_path / "secrets" / "database-url").write_text(url + "\n")
    try:
        yield made
    finally:
        made.stop()
        database.close()


def bucket_and_store(stack):
    words = [
        str(stack.folder / "objects" / "checkpoints") if one.startswith("/data/") else one
        for one in stack.command("bucket")
    ]
    subprocess.run([RCLONE, *words], check=True, env=stack.environment("bucket"))
    words = [
        str(stack.folder / "objects") if one == "/data" else one for one in stack.command("store")
    ]
    stack.start("store", [RCLONE, *words])


def test_the_stack_trains_a_job_and_prometheus_has_its_series(stack):
    bucket_and_store(stack)
    stack.start("control-plane", [BIN / "phalanx", *stack.command("control-plane")])
    home = stack.folder / "data" / "home"
    url = f"https://localhost:{stack.ports['control-plane']}"

    def ready():
        assert stack.running[-1].poll() is None, (stack.folder / "control-plane.log").read_text()
        try:
            return httpx.get(f"{url}/readyz", verify=False).status_code == 200
        except httpx.HTTPError:
            return False

    wait_until(ready, "the control plane")
    environment = {**stack.environment("scrape-token"), "PATH": f"{BIN}:{os.environ['PATH']}"}
    for _ in range(2):  # the second time finds the token
        words = [*SERVICES["scrape-token"]["entrypoint"], *stack.command("scrape-token")]
        subprocess.run(words, env=environment, check=True)
    token = (stack.folder / "scrape" / "token").read_text().strip()

    (stack.folder / "prometheus.yml").write_text(
        stack.here((COMPOSE / "prometheus.yml").read_text()).replace("15s", "1s")
    )
    listen = f"127.0.0.1:{stack.ports['prometheus']}"
    stack.start(
        "prometheus", [PROMETHEUS, *stack.command("prometheus"), f"--web.listen-address={listen}"]
    )

    store = dict(
        line.split("=", 1)
        for line in (stack.folder / "secrets" / "jobs.env").read_text().splitlines()
    )
    phalanx = [BIN / "phalanx", "--home", home]
    run = {"env": {**environment, **store}, "check": True, "capture_output": True, "text": True}
    subprocess.run(
        [*phalanx, "secrets", "set", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"], **run
    )
    code = stack.folder / "code"
    code.mkdir()
    (code / "train.py").write_text(SCRIPT)
    (code / "job.yaml").write_text(
        yaml.safe_dump(
            {
                "schema": 1,
                "name": "laptop",
                "run": f"{sys.executable} train.py",
                "framework": "torch",
                "resources": {"nodes": 1, "slots_per_node": 1},
                "checkpoint": {"every": "5 steps", "store": "s3://checkpoints"},
                "secrets": ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"],
                "env": {
                    "AWS_ENDPOINT_URL": f"http://127.0.0.1:{stack.ports['store']}",
                    "AWS_REGION": store["AWS_REGION"],
                },
            }
        )
    )
    subprocess.run([*phalanx, "submit", code / "job.yaml"], cwd=code, **run)
    job = "j-1"

    def series(query):
        try:
            answer = httpx.get(f"http://{listen}/api/v1/query", params={"query": query}).json()
        except httpx.HTTPError:
            return []
        return answer["data"]["result"]

    def trains():
        assert [one.poll() for one in stack.running] == [None] * len(stack.running)
        shown = json.loads(subprocess.run([*phalanx, "show", job, "--json"], **run).stdout)
        assert shown["state"] not in ("FAILED", "CANCELLED"), shown
        return series("training_loss")

    wait_until(trains, "the loss of the job in Prometheus", every_s=1)
    assert [one["value"][1] for one in series("up")] == ["1"]
    wait_until(
        lambda: list((stack.folder / "objects" / "checkpoints").rglob("MANIFEST.json")),
        "a checkpoint in the object store",
        guard_s=60,
    )
    subprocess.run([*phalanx, "stop", job], **run)
    assert token
