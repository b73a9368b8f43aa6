"""Two hundred names: the secrets among them are withheld, the look-alikes pass."""

from __future__ import annotations

import base64
import io
import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.core.contract.secrecy import (
    WITHHELD,
    OutputMask,
    is_secret,
    redacted,
    shown_spec,
    split_secrets,
)

pytestmark = pytest.mark.unit


def _names(text: str) -> list[str]:
    return text.split()


SECRETS = _names("""
API_KEY APIKEY OPENAI_API_KEY ANTHROPIC_API_KEY WANDB_API_KEY COMET_API_KEY MLFLOW_TRACKING_PASSWORD
KAGGLE_KEY HF_TOKEN HUGGINGFACEHUB_API_TOKEN HUGGING_FACE_HUB_TOKEN GITHUB_TOKEN GH_PAT GITLAB_PAT
CI_JOB_TOKEN NPM_TOKEN NPM_AUTH PYPI_TOKEN DOCKER_PASSWORD DOCKER_AUTH_CONFIG REGISTRY_PASS DB_PASS
DB_PASSWORD DB_PASSWD DB_PW DB_PWD DBPASS DBPASSWORD PGPASSWORD MYSQL_PWD MYSQL_ROOT_PASSWORD
REDIS_AUTH REDIS_PASSWORD RABBITMQ_DEFAULT_PASS SENTRY_DSN DATABASE_DSN POSTGRES_DSN
AZURE_STORAGE_CONNECTION_STRING APPLICATIONINSIGHTS_CONNECTION_STRING CONNSTR AZURE_STORAGE_KEY
AZURE_CLIENT_SECRET AZURE_SAS SAS_TOKEN AWS_ACCESS_KEY_ID AWS_SECRET_ACCESS_KEY AWS_SESSION_TOKEN
AWS_BEARER_TOKEN_BEDROCK GOOGLE_APPLICATION_CREDENTIALS GOOGLE_CREDS GCP_SA_KEY GCS_KEY
MINIO_ROOT_PASSWORD S3_SECRET S3_SECRET_KEY B2_APPLICATION_KEY JWT JWT_SECRET JWT_SIGNING_KEY
HMAC_SECRET SIGNING_KEY ENCRYPTION_KEY MASTER_KEY PRIVATE_KEY RSA_PRIVATE_KEY SSH_KEY SSHKEY
SSH_PRIVATE_KEY GPG_PASSPHRASE SSH_PASSPHRASE KEYSTORE_PASS CKPT_KEY COOKIE SESSION_COOKIE
SESSION_SECRET COOKIE_SECRET SECRET SECRETS SECRET_KEY_BASE DJANGO_SECRET_KEY FLASK_SECRET
client_secret clientSecret accessToken ACCESSTOKEN authToken AUTH_TOKEN BEARER AUTHORIZATION
AUTH_HEADER BASIC_AUTH HTTP_BASIC_AUTH OAUTH_TOKEN OAUTH2_CLIENT_SECRET SLACK_WEBHOOK_URL
DISCORD_WEBHOOK SLACK_BOT_TOKEN TWILIO_AUTH_TOKEN SENDGRID_API_KEY STRIPE_SECRET_KEY LICENSE_KEY
TOTP_SECRET VPN_PSK WIFI_PSK ADMIN_PIN HASH_SALT PASSWORD PASSWD PASS PASSPHRASE CREDENTIALS
USER_CREDENTIALS VAULT_TOKEN CONSUL_HTTP_TOKEN NOMAD_TOKEN db.password db-password ROOTPASSWORD
ROOT_PASSWORDS API_TOKENS TLS_KEY NETRC KRB5_KEYTAB mysqlPassword
""")

PLAIN = _names("""
PATH HOME USER LANG TERM SHELL PWD OLDPWD EDITOR TZ KEYBOARD KEYMAP KEYBOARD_LAYOUT XKB_KEYMAP
MONKEY DONKEY TURKEY_REGION HOTKEY PASSES NUM_PASSES PASSIVE PASSENGER COMPASS COMPASS_URL BYPASS
BYPASS_CACHE LOWPASS HIGHPASS_HZ TRESPASS TOKENIZERS_PARALLELISM TOKENIZER TOKENIZER_NAME
TOKENIZED_DIR MAX_TOKENS MAX_NEW_TOKENS NUM_TOKENS TOKENS_PER_BATCH TOTAL_TOKENS EOS_TOKEN PAD_TOKEN
BOS_TOKEN MASK_TOKEN TOKEN_LIMIT TOKEN_COUNT SECRETARY SECRETARIAT_EMAIL AUTHOR GIT_AUTHOR_NAME
GIT_AUTHOR_EMAIL AUTHORS AUTHORITY XAUTHORITY SSH_AUTH_SOCK RAY_AUTH_MODE AUTH_TYPE PUBLIC_KEY
SSH_PUBLIC_KEY STRIPE_PUBLISHABLE_KEY PRIMARY_KEY SORT_KEY PARTITION_KEY CACHE_KEY DB_PASSWORD_FILE
TLS_KEY_FILE SSL_KEY_PATH SECRET_NAME KEY_NAME PATTERN PATCH PATIENCE PATCHES REPEAT COMPAT KEEP
PINNED PINS OPINION SPIN PIN_MEMORY PIPELINE CUDA_VISIBLE_DEVICES OMP_NUM_THREADS NCCL_DEBUG
MASTER_ADDR MASTER_PORT RANK WORLD_SIZE LOCAL_RANK TORCH_DISTRIBUTED_DEBUG HF_HOME HF_DATASETS_CACHE
TRANSFORMERS_OFFLINE WANDB_MODE WANDB_PROJECT WANDB_DIR MLFLOW_TRACKING_URI AWS_REGION AWS_PROFILE
AWS_ENDPOINT_URL GOOGLE_CLOUD_PROJECT AZURE_TENANT DATABASE_URL REDIS_URL DB_HOST DB_USER DB_NAME
PGHOST PGUSER HTTP_PROXY NO_PROXY CONDA_PREFIX VIRTUAL_ENV LD_LIBRARY_PATH PYTHONPATH PYTHONHASHSEED
SEED EPOCHS LEARNING_RATE BATCH_SIZE FORWARD_PASS FIRST_PASS SESSION_MANAGER XDG_SESSION_TYPE
DBUS_SESSION_BUS_ADDRESS CASALT BASALT SALTED HMACS DSNAME JWTS SASS_PATH KEYWORDS CREDIT CREDITS
ASSETS
""")


def test_there_are_enough_of_both() -> None:
    assert len(set(SECRETS)) >= 100 and len(set(PLAIN)) >= 100


def test_a_secret_is_known_by_its_name() -> None:
    spellings = [*SECRETS, *(name.lower() for name in SECRETS if name.isupper())]
    assert [name for name in spellings if not is_secret(name, "x")] == []


def test_a_look_alike_passes() -> None:
    assert [name for name in PLAIN if is_secret(name, "x")] == []


SHAPES = {
    "aws": "AKIAIOSFODNN7EXAMPLE",
    "github": "ghp_" + "a1B2" * 9,
    "github fine": "github_pat_" + "a1B2_" * 8,
    "gitlab": "glpat-" + "a1B2-" * 4,
    "hugging face": "hf_" + "aB" * 17,
    "openai": "sk-proj-" + "aB1_" * 10,
    "stripe": "sk_live_" + "a1B2" * 6,
    "slack": "xoxb-1234567890-abcdefgh",
    "google": "AIza" + "x" * 35,
    "npm": "npm_" + "a" * 36,
    "jwt": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTYifQ.c2lnbmF0dXJlLXNpZw",
    "own": "phx_0a1b2c3d_" + "0" * 40,
    "pem": "-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----",
}


@pytest.mark.parametrize("token", SHAPES.values(), ids=SHAPES)
def test_a_token_is_known_by_its_shape(token: str) -> None:
    assert is_secret("MY_SETTING", token)
    assert redacted(f"--with {token} ") == f"--with {WITHHELD} " or token not in redacted(token)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("postgres://me:hunter2@db/x", f"postgres://me:{WITHHELD}@db/x"),
        ("http://:p@proxy:3128", f"http://:{WITHHELD}@proxy:3128"),
        ("https://" + "0" * 32 + "@sentry.io/1", f"https://{WITHHELD}@sentry.io/1"),
        ("Server=db;Password=hunter2;Port=1", f"Server=db;Password={WITHHELD};Port=1"),
        ("https://x/y?access_token=abcdef&z=1", f"https://x/y?access_token={WITHHELD}&z=1"),
    ],
)
def test_a_password_inside_of_a_value_is_cut_out(value: str, shown: str) -> None:
    assert is_secret("SOME_ADDRESS", value) and redacted(value) == shown


@pytest.mark.parametrize(
    "value",
    [
        "https://github.com/me/repo",
        "ssh://git@github.com/x",
        "http://localhost:8080/a@b",
        "risk-adjusted-returns-of-the-year",
        "hf_hub",
        "/data/sk-learn",
        "s3://bucket/key",
        "a=1;b=2",
    ],
)
def test_an_ordinary_value_passes(value: str) -> None:
    assert redacted(value) == value and not is_secret("SETTING", value)


def test_trees_and_environments() -> None:
    token = SHAPES["github"]
    spec = {"run": ["a", token], "n": 1, "env": {"A": "1", "DB_PASS": "x"}}
    spec["roles"] = {"r": {"env": {"X": token}}}
    assert shown_spec(spec) == {
        "run": ["a", WITHHELD],
        "n": 1,
        "env": {"A": "1", "DB_PASS": WITHHELD},
        "roles": {"r": {"env": {"X": WITHHELD}}},
    }
    plain, secret = split_secrets({"A": "1", "DB_PASS": "x", "URL": "x://a:b@c"})
    assert plain == {"A": "1"} and secret == {"DB_PASS": "x", "URL": "x://a:b@c"}


@settings(max_examples=40, deadline=None)
@given(st.text(max_size=300))
def test_redaction_is_stable(text: str) -> None:
    once = redacted(text)
    assert redacted(once) == once or WITHHELD in once


LONG, SHORT = "q7-Hx!9v", "a\nq7-Hx!9vX0\nb"


def test_values_are_starred_at_their_length_and_short_ones_are_left() -> None:
    mask = OutputMask(["hunter2", LONG, SHORT])
    assert (
        mask.hide(b"pass hunter2, q7-Hx!9v; q7-Hx!9vX0.") == b"pass hunter2, ********; **********."
    )
    assert OutputMask().hide(b"q7-Hx!9v") == b"q7-Hx!9v"


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.sampled_from([LONG, "q7-", "q7-Hx!9vX0", "H", "x!9v", "\n"]), max_size=8),
    st.lists(st.integers(1, 20), min_size=1, max_size=6),
    st.integers(1, 25),
)
def test_no_value_is_read_whatever_the_segments_of_a_growing_file(
    pieces: list[str], growth: list[int], most: int
) -> None:
    whole, mask = "".join(pieces).encode(), OutputMask([LONG, SHORT])
    read, size, steps = b"", 0, itertools.cycle(growth)
    while len(read) < len(whole):
        size = min(len(whole), size + next(steps))
        file, left = io.BytesIO(whole[:size]), size - len(read)
        read += mask.read(file, len(read), min(most, left), grows=size < len(whole))
    assert read == mask.hide(whole)
    assert LONG.encode() not in read and len(read) == len(whole)


@given(st.binary(min_size=12, max_size=40), st.binary(max_size=5), st.binary(max_size=5))
def test_the_base64_form_of_a_value_is_hidden_wherever_it_begins(
    noise: bytes, before: bytes, after: bytes
) -> None:
    value = noise.hex()
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        text = encode(before + value.encode() + after)
        shown = OutputMask([value]).hide(text)
        assert len(shown) == len(text)
        # What is left at the two ends says less than three bytes of the value.
        assert sum(one != ord("*") for one in shown) <= len(before + after) * 4 // 3 + 12
