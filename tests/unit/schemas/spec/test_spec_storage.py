"""Where checkpoints are copied to, and by which key they are encrypted."""

import pydantic
import pytest

from phalanx.schemas.spec.job import Checkpointing, JobSpec

pytestmark = pytest.mark.unit


def test_a_store_is_a_prefix_without_credentials():
    assert Checkpointing(store="s3://ckpt/vision/").store == "s3://ckpt/vision"
    for bad in (
        "/mnt/ckpt",
        "s3://",
        "http://host/x",
        "s3://key:secret@bucket/x",
        "s3://b/x?key=1",
    ):
        with pytest.raises(pydantic.ValidationError):
            Checkpointing(store=bad)


def test_a_key_is_named_and_never_written_down():
    assert Checkpointing(encryption={"key_env": "CKPT_KEY"}).encryption.key_env == "CKPT_KEY"
    for bad in ({}, {"key_env": "A", "key_file": "/k"}, {"key": "00"}):
        with pytest.raises(pydantic.ValidationError):
            Checkpointing(encryption=bad)


def test_secrets_are_names_and_never_ours():
    assert JobSpec(run="x", secrets=["AWS_SECRET_ACCESS_KEY"]).secrets == ["AWS_SECRET_ACCESS_KEY"]
    for bad in ("PHALANX_REPORT_FILE", "RANK", "a=b"):
        with pytest.raises(pydantic.ValidationError):
            JobSpec(run="x", secrets=[bad])
