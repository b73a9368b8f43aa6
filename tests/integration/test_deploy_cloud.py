"""Terraform modules, storage manifests and the compose file, checked without a cloud or containers."""

import re
import stat
import subprocess
import sys
from pathlib import Path

import hcl2
import kubernetes_validate
import pytest
import yaml

from phalanx import __version__
from phalanx.server.settings import Settings

pytestmark = pytest.mark.integration
ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
MODULES = sorted(path.parent for path in DEPLOY.glob("terraform/*/main.tf"))
COMPOSE = yaml.safe_load((DEPLOY / "compose" / "compose.yaml").read_text())


def named(blocks):
    """(type, name, body) of blocks such as resources, and ("", name, body) of variables."""
    for block in blocks:
        for first, inner in block.items():
            if all(isinstance(one, dict) for one in inner.values()) and "description" not in inner:
                for name, body in inner.items():
                    yield first.strip('"'), name.strip('"'), body
            else:
                yield "", first.strip('"'), inner


@pytest.mark.parametrize("module", MODULES, ids=lambda path: path.name)
def test_a_module_is_consistent(module):
    text = (module / "main.tf").read_text()
    parsed = hcl2.loads(text)
    variables = {name: body for _, name, body in named(parsed["variable"])}
    assert variables
    for name, body in variables.items():
        assert body["description"], name
        assert "type" in body, name
    assert set(re.findall(r"\bvar\.(\w+)", text)) == set(variables)
    defined = {f"{kind}.{name}" for kind, name, _ in named(parsed["resource"])}
    defined |= {f"data.{kind}.{name}" for kind, name, _ in named(parsed.get("data", []))}
    code = re.sub(r"(?m)^\s*(?:source|version)\s*=.*$|#.*$", "", text)
    used = re.findall(r"\b((?:data\.)?(?:aws|helm|kubernetes)_\w+\.\w+)\.", code)
    assert set(used) <= defined
    for _, name, body in named(parsed["output"]):
        assert body["description"], name
    assert not re.search(r'(?i)(password|secret|token)\w*\s*=\s*"[^"$]', text)


def test_modules_are_private_and_encrypted():
    bucket = (DEPLOY / "terraform/bucket/main.tf").read_text()
    for key in (
        "block_public_acls",
        "block_public_policy",
        "ignore_public_acls",
        "restrict_public_buckets",
    ):
        assert re.search(rf"{key}\s*= true", bucket)
    assert "abort_incomplete_multipart_upload" in bucket
    assert "aws:SecureTransport" in bucket
    database = (DEPLOY / "terraform/database/main.tf").read_text()
    assert re.search(r"publicly_accessible\s*= false", database)
    for key in ("storage_encrypted", "deletion_protection", "manage_master_user_password"):
        assert re.search(rf"{key}\s*= true", database)
    assert re.search(r"encrypted\s*= true", (DEPLOY / "terraform/shared-home/main.tf").read_text())


def test_the_readme_shows_variables_that_exist():
    text = (DEPLOY / "terraform" / "README.md").read_text()
    for block in re.findall(r"```hcl\n(.*?)```", text, re.S):
        for _, _, body in ((None, None, one) for one in hcl2.loads(block)["module"]):
            (content,) = body.values()
            module = DEPLOY / "terraform" / content["source"].strip('"')
            known = set(re.findall(r'variable "(\w+)"', (module / "main.tf").read_text()))
            given = {key for key in content if not key.startswith("__")} - {"source"}
            assert given <= known
            parsed = hcl2.loads((module / "main.tf").read_text())
            needed = {name for _, name, one in named(parsed["variable"]) if "default" not in one}
            assert needed <= given


@pytest.mark.parametrize("name", ["nfs", "efs"])
def test_storage_manifests_are_valid(name):
    documents = list(yaml.safe_load_all((DEPLOY / f"kubernetes/storage/{name}.yaml").read_text()))
    for document in documents:
        kubernetes_validate.validate(document, "1.37", strict=True)
    claims = {
        one["metadata"]["name"]: one for one in documents if one["kind"] == "PersistentVolumeClaim"
    }
    assert claims["checkpoints"]["spec"]["accessModes"] == ["ReadWriteMany"]
    for one in documents:
        if one["kind"] == "PersistentVolume":
            assert one["spec"]["persistentVolumeReclaimPolicy"] == "Retain"
            assert "hard" in one["spec"]["mountOptions"]


def test_the_compose_file_publishes_on_the_loopback_interface_and_names_what_exists():
    services = COMPOSE["services"]
    for name, service in services.items():
        for port in service.get("ports", []):
            assert port.startswith("127.0.0.1:"), name
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            if source.startswith("."):
                assert (DEPLOY / "compose" / source).exists(), source
            else:
                assert source in COMPOSE["volumes"], source
        assert set(service.get("secrets", [])) <= set(COMPOSE["secrets"])
        needs = service.get("depends_on", [])
        assert set(needs) <= set(services)
        for key in service.get("environment", {}):
            if key.startswith("PHALANX__"):
                _, group, field = key.split("__")
                assert field.lower() in Settings.model_fields[group.lower()].annotation.model_fields
        assert not re.search(
            r"(?i)password: *\S*[a-z0-9]{6}", yaml.safe_dump(service.get("environment", {}))
        )
    build = services["control-plane"]["build"]
    folder = (DEPLOY / "compose" / build["context"]).resolve()
    assert (folder / build["dockerfile"]).exists()
    assert (folder / "requirements" / f"{build['args']['REQUIREMENTS']}.txt").exists()
    assert services["control-plane"]["image"].endswith(f":{__version__}")


def test_prepare_makes_secrets_once(tmp_path):
    script = tmp_path / "compose" / "prepare.sh"
    script.parent.mkdir()
    script.write_bytes((DEPLOY / "compose" / "prepare.sh").read_bytes())
    first = subprocess.run(["sh", script], capture_output=True, text=True, check=True)
    folder = script.parent / "secrets"
    made = {path.name: path.read_bytes() for path in folder.iterdir()}
    wanted = {Path(one["file"]).name for one in COMPOSE["secrets"].values()} | {"store.env"}
    assert wanted <= set(made)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    password = made["database-password"].decode()
    assert len(password) == 48
    assert password in made["database-url"].decode()
    assert password not in first.stdout + first.stderr
    subprocess.run(["sh", script], capture_output=True, check=True)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == made


def test_grafana_gets_the_dashboards_of_the_package():
    provider = yaml.safe_load((DEPLOY / "compose/grafana/dashboards/provider.yaml").read_text())[
        "providers"
    ][0]
    mounts = dict(one.split(":")[:2][::-1] for one in COMPOSE["services"]["grafana"]["volumes"])
    folder = (DEPLOY / "compose" / mounts[provider["options"]["path"]]).resolve()
    assert len(list(folder.glob("*.json"))) == 6


@pytest.mark.skipif(sys.platform != "linux", reason="hadolint's wheel is for Linux here")
def test_the_dockerfile_is_linted():
    hadolint = Path(sys.executable).parent / "hadolint"
    # DL3006: the tag is in the build argument.
    done = subprocess.run(
        [hadolint, "--ignore", "DL3006", DEPLOY / "image" / "Dockerfile"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
