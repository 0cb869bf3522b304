"""Redaction replaces secrets everywhere and personal data in shareable formats, and keeps harmless text."""

import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diagnostics.output.redact import mask, mask_and_cut, redact, redact_path
from diagnostics.output.report_output import FORMATS, ReportOptions, print_report
from tests.diagnostics import secret_cases
from tests.diagnostics.test_sanitize import report_with, standard_streams

# Secrets are assembled from parts, so that secret scanners report nothing.
LETTERS = "aB3dE5gH7jK9mN1pQ4rS6tU8vW0xY2zC5eF7hJ"
HEX = "0a1b2c3d4e5f60718293a4b5c6d7e8f9"


def token(head, length=36):
    """Return a fake token with this prefix and this many random-looking characters."""
    return head + (LETTERS * 4)[:length]


SECRETS = {
    "bearer": ("Authorization: Bearer {}", token("", 30)),
    "basic": ("'Authorization': 'Basic {}'", token("", 24) + "=="),
    "digest": ('Authorization: Digest username="ada", response="{}"', HEX),
    "other scheme": ("authorization: Hawk id={}", token("", 20)),
    "the end of it": ("20261122/y, SignedHeaders=host, Signature={}", HEX * 2),
    "a scheme taken for a path": ("postgres:/ada:{}@db:5432/x", "hunter2four"),
    "aws4": ("Authorization: AWS4-HMAC-SHA256 Credential=x/20261122/y, Signature={}", HEX * 2),
    "x-api-key": ("x-api-key: {}", token("", 20)),
    "hugging face": ("{}", token("hf" + "_", 34)),
    "openai": ("{}", token("sk" + "-proj-", 40)),
    "anthropic": ("{}", token("sk" + "-ant-api03-", 60)),
    "ghp": ("{}", token("gh" + "p_")), "ghu": ("{}", token("gh" + "u_")), "ghs": ("{}", token("gh" + "s_")),
    "github fine": ("{}", token("github" + "_pat_", 60)), "gitlab": ("{}", token("gl" + "pat-", 20)),
    "google": ("{}", token("AI" + "za", 35)), "google oauth": ("{}", token("ya" + "29.", 60)),
    "aws id": ("{}", "AK" + "IA" + "Q3EGRT7YUIOPASDF"), "aws session id": ("{}", "AS" + "IA" + "Q3EGRT7YUIOPASDF"),
    "aws secret": ("aws_secret_access_key = {}", token("", 40)),
    "aws session": ("AWS_SESSION_TOKEN={}", token("FwoG", 120)),
    "presigned": ("https://b.s3.amazonaws.com/k?X-Amz-Credential=c&X-Amz-Signature={}", HEX * 2),
    "sas": ("https://a.blob.core.windows.net/c?sv=2024&sig={}", token("", 43) + "%3D"),
    "azure": ("DefaultEndpointsProtocol=https;AccountName=a;AccountKey={};EndpointSuffix=x", token("", 86) + "=="),
    "npm": ("{}", token("np" + "m_")), "pypi": ("{}", token("py" + "pi-AgEIcHlwaS5vcmc", 70)),
    "nvidia": ("{}", token("nv" + "api-", 64)), "databricks": ("{}", "da" + "pi" + HEX),
    "replicate": ("{}", token("r8" + "_", 37)), "slack": ("{}",
    "xo" + "xb-123456789012-1234567890123-" + LETTERS[:24]),
    "stripe": ("{}", token("sk" + "_live_", 24)), "jwt": ("{}", "ey" + f"JhbGciOiJI.{LETTERS[:30]}.{LETTERS[:30]}"),
    "wandb": ("wandb: {}", HEX + "0a1b2c3d"),
    "private key": ("-----BEGIN " + "RSA PRIVATE KEY----- {}", token("MIIE", 100)),
    "key's line": ("{}", token("", 64)),
    "url": ("postgres://ada:{}@db:5432/x", "hunter" + "2four"), "no scheme": ("redis ada:{}@db:6379",
    "hunter" + "2four"),
    "variable": ("PGPASSWORD={}", "correct" + "horse"), "yaml": ("db_password: '{}'", "correct" + "horse"),
    "json": ('"client_secret": "{}"', "correct" + "horse"), "flag": ("--hub_token {}", "correct" + "horse7"),
    "cookies as a dict": ("cookies={{'session': '{}'}}", "correct" + "horse"),
    "cookies in JSON": ('"cookies": {{"sid": "{}"}}', "correct" + "horse"),
    "URL-encoded login": ("next=https%3A%2F%2Fada%3A{}%40db", "hunter" + "2%2Ffour"),
    "URL-encoded bearer": ("Authorization%3A%20Bearer%20{}", token("", 30)),
    "key alone": ("key: {}", HEX), "license key": ("LICENSE_KEY={}", HEX), "session": ("X-Session-Id: {}", HEX),
    "curl's cookie": ("curl -b 'session={}' https://h", "correct" + "horse"),
    "curl's long cookie": ("curl -s --cookie session={} https://h", "correct" + "horse"),
    "redis": ("redis-cli -h db -a {} ping", "correct" + "horse"),
    "mongo": ("mongosh -u root -p {}", "correct" + "horse"),
    "ldap": ("ldapsearch -x -w {}", "correct" + "horse"), "httpie": ("http -a ada:{} https://h", "correct" + "horse"),
    "cookie in code": ("response.set_cookie('sid', '{}')", "correct" + "horse"),
    "passphrase": ("SSH_PASSPHRASE={}", "correct" + "horse"), "cookie": ("Cookie: session={}", "correct" + "horse"),
}  # fmt: skip
PERSONS = {
    "home": ("/home/{}/run.sh", "qzadaq"), "mac": ("/Users/{}/run.sh", "qzadaq"), "u": ("/u/{}/run.sh", "qzadaq"),
    "fsx": ("/fsx/{}/ckpt/3", "qzadaq"), "workspace": ("/workspace/{}/run.sh", "qzadaq"),
    "data": ("/data/{}/x.json", "qzadaq"),
    "fsx alone": ("cd /fsx/{}", "qzadaq"), "fsx home": ("/fsx/home/{}/x", "qzadaq"), "tilde": ("~{}/x", "qzadaq"),
    "mail": ("by {} today", "qz.ada@exa-mple.org"), "hardware": ("ether {}", "0a:1b:2c:3d:4e:5f"),
    "ipv6 zone": ("from {}", "fe80::1ff:fe23:4567:890a%eth0"), "ipv6": ("from {}", "2001:db8::8a2e:370:7334"),
    "ipv6 port": ("at [{}]:29500", "fd00:12::7"), "ipv4": ("MASTER_ADDR={}", "10.20.30.40"),
    "amazon": ("on {}", "ip-10-20-30-40.ec2.internal"), "google": ("on {}", "gpu-7.us-c1.c.qzproj.internal"),
    "azure": ("on {}", "qzvm.westeurope.cloudapp.azure.com"), "pod": ("on {}", "qzpod.ns.svc.cluster.local"),
    "bucket": ("s3 {}", "qzb.s3.eu-west-1.amazonaws.com"), "uuid": ("run {}", "0a1b2c3d-1111-4222-8333-444455556666"),
    "proxy": ("https_proxy={}", "qzproxy.corp:3128"),
    "git author": ("Author: {} <ada@example.org>", "Qzada Lovelace"),
    "git trailer": ("Signed-off-by: {} <ada@example.org>", "Qzada Lovelace"),
    "ssh": ("ssh -p 22 {} ls", "qzada@qzbox"), "prompt": ("[{} ~]$ ls", "qzada@qzbox"),
    "share": ("\\\\{}\\share\\runs", "qznas"), "nfs": ("{}:/export/home", "qznas7"),
}  # fmt: skip
SHAPES = SECRETS | PERSONS


def visible_parts(text, secret):
    """Return the parts of a secret that are visible in a text."""
    return [part for part in re.split(r"[\s/]", secret) if len(part) > 4 and part in text]


@pytest.mark.parametrize("form", FORMATS)
def test_formats_show_no_secret_and_shareable_ones_no_person(form):
    """No format shows a secret in any field of a report; only the terminal shows personal data."""
    leaking = []
    for name, (text, secret) in (SHAPES if form != "terminal" else SECRETS).items():
        with standard_streams() as (out, _):
            print_report(report_with(f"value {text.format(secret)} end"), ReportOptions(form, verbose=True))
        printed = re.sub(r"\n\s*", " ", out.getvalue()) if form == "terminal" else out.getvalue()
        leaking += [name] if visible_parts(printed, secret) else []
    assert leaking == []


def leaks(secret, text):
    """Return whether a text contains a secret, or twelve characters of a long one."""
    long = len(secret) >= 24 and any(secret[at : at + 12] in text for at in range(len(secret) - 11))
    return secret in text or long


@pytest.mark.parametrize(("cases", "minimum"), [(secret_cases.secrets, 2500), (secret_cases.persons, 1000)])
def test_no_generated_case_leaks(cases, minimum):
    """No generated case of secret_cases.py leaks its secret or personal data."""
    all_cases = list(cases())
    assert len(all_cases) >= minimum
    assert [(name, text) for name, secret, text in all_cases if leaks(secret, redact(text))] == []


def test_no_unquoted_password_of_any_characters_is_shown():
    """Punctuation does not end an unquoted password."""
    assert [text for _, secret, text in secret_cases.unquoted_passwords(100) if secret in redact(text)] == []


def test_secret_is_masked_before_the_text_is_cut():
    """A text is masked before it is cut, because the beginning of a secret would not be recognised."""
    for text, secret in SECRETS.values():
        full = text.format(secret)
        for length in range(1, len(full)):
            assert visible_parts(mask_and_cut(full, length), secret) == []


def test_user_names_in_paths_are_replaced():
    for folder in (
        "/home",
        "/Users",
        "/scratch",
        "/fsx",
        "/nfs/home",
        "/lustre/home",
        "/u",
        "/data",
        "/workspace",
    ):
        assert redact_path(f"{folder}/qzoltan/run/train.py") == f"{folder}/<user>/run/train.py"


TEXTS = st.lists(
    st.one_of(
        st.sampled_from([text.format(secret) for text, secret in SHAPES.values()]),
        st.sampled_from([*"<>=\"'%\n", ": ", "@", "//", "::", "/home/", "/data/", "--token ", "host="]),
        st.text(max_size=6),
    ),
    max_size=8,
).map("".join)


@settings(max_examples=200, deadline=None)
@given(TEXTS)
def test_redaction_is_idempotent(text):
    """Redacting a redacted text changes nothing, so that a report can be read as a baseline."""
    assert mask(mask(text)) == mask(text)
    assert redact(redact(text)) == redact(text)


LONG = {
    "underscores": "_" * 60, "underscored": "a_" * 10_000 + " = 3", "dots": "a." * 10_000, "words": "token" * 4_000,
    "flags": "--" * 10_000, "flag": "--" + "a-" * 10_000, "jwt": "eyJ" + "-eyJ" * 5_000, "colons": ":a" * 10_000,
    "hex": "0:" * 10_000, "at": "a@" * 10_000, "mail": "a" * 20_000, "dashes": "a-" * 10_000,
    "slashes": "/" * 20_000,
    "urls": "://" * 6_600, "hosts": "//a" * 6_600, "host": "host" * 5_000, "hosts=": "_host=" * 3_200,
    "quotes": "authorization: " + '"' * 20_000, "authorization": "authorization:" * 1_400, "digits": "1." * 10_000,
    "begin": "-----BEGIN A PRIVATE KEY-----" * 680, "login": "a:b" * 6_600, "long": "A" * 20_000,
    "tilde": "~a" * 10_000,
    "homes": "/home/" * 3_200, "data": "/data/a" * 2_800, "blanks": "token" + " " * 20_000,
    "bearer": "bearer " * 2_800,
    "plus": "a+" * 10_000, "c": "\\" * 20_000 + "Users", "cookie": "cookie" * 3_200, "sig": "?sig" * 5_000,
    "equals": "token=" * 3_200, "drive": "C:" + "\\" * 20_000, "dashed": "0a-" * 6_600,
    "key": "-----BEGIN " * 1_800, "encoded": "%3A%2F%2Fa%3A" * 1_600, "cookies": "cookies={" * 2_200,
    "curl": "curl -u a:" * 2_000, "netrc": "machine a password " * 1_000, "xml": "<token " * 2_800,
    "tag": "token: !a " * 2_000, "netlogin": "login('a','" * 1_800, "addresses": "fe80:" * 4_000,
    "sid": "sid=" + "0a" * 10_000, "ssh": "ssh -a " * 2_800, "by": "Signed-by: " * 1_800, "nfs": "a1" * 10_000,
}  # fmt: skip


def cpu_seconds(text):
    """Return the CPU time of redacting a text."""
    began = time.process_time()
    redact(text)
    return time.process_time() - began


def test_redaction_takes_linear_time():
    """No text of about 20,000 characters takes more than 1.2 s of CPU; a quadratic pattern takes 2.4 s."""
    assert [name for name, text in LONG.items() if cpu_seconds(text) > 1.2] == []


HARMLESS = [
        "max_tokens = 8192", "pad_token_id=0", "tokenizer: Qwen/Qwen2.5-0.5B", "tokens per second: 1234",
        "std::vector<int>",
        "c10::Error", "[1::2]", "12:30:45.123", "nvidia-cublas-cu12==12.4.5.8", "vllm/vllm-openai:v0.8.5@sha256:abc",
        "/data/models/Qwen", "/workspace/run.sh", "/u/", "see docs/ci.md", "torch.distributed.init_process_group",
        "bearer of bad news", "authorization failed", "password", "a secret", "lr: 1e-6",
        "https://github.com/a/b/issues/3",
        "world_size=8", "ghost = 3", "localhost:8000", "http://127.0.0.1:8000", "::1", "host=localhost",
    "commit 0a1b2c3d4e5f60718293a4b5c6d7e8f90a1b2c3d", "models/a/snapshots/0a1b2c3d4e5f60718293a4b5c6d7e8f90a1b2c3d",
    "max_tokens=512", "max_new_tokens: 8192", "--max-tokens 512", "['--max-tokens', '512']", "num_tokens=10",
    "tokens/s: 1234.5", "prompt_tokens: 100, completion_tokens: 20", '"total_tokens": 120',
    "total_token_num=4096", "token_count = 512", "pad_token='<|endoftext|>'", "eos_token: <|im_end|>",
    "pad_token_id=151643", "bos_token_id: 1", "tokenizer='Qwen/Qwen2.5-7B'",
    "tokenizer_name_or_path: meta-llama/Llama-3.1-8B", "--tokenizer Qwen/Qwen3-8B", "tokenizer_mode=auto",
    "['--tokenizer', 'Qwen/Qwen3-8B']", "tokenizer_class: Qwen2TokenizerFast", "skip_tokenizer_init=True",
    "password: None", "token=None", '"token": null', "api_key: ''", 'token=""', "token: true",
    "use_auth_token=True", "hf_token: False", "commit 3f2a9c1d8e7b6a5f4c3d2e1f0a9b8c7d6e5f4a3b", "password:",
    "--token", "HEAD is now at 3f2a9c1 fix", "git checkout 3f2a9c1d8e7b6a5f4c3d2e1f0a9b8c7d6e5f4a3b",
    "sha256:ab12ab12ab12ab12ab12ab12ab12ab12ab12ab12ab12ab12ab12ab12ab12ab12",
    "rev: 3f2a9c1d8e7b6a5f4c3d2e1f0a9b8c7d6e5f4a3b", "@3f2a9c1d8e7b6a5f4c3d2e1f0a9b8c7d6e5f4a3b#egg=trl",
    "mkdir -p outputs/run1", "docker run -p 8000:8000 image", "ssh -p 2222 h", "kill -u root", "cp -a a b",
    "ls -a", "python -u train.py", "python -u train.py --lr 1e-6", "tar -u file", "sort -u names.txt",
    "srun -p gpu_long -N 2 train", "sbatch -p h100 job.sh",
    "nohup python -m vllm.entrypoints.openai.api_server -tp 8", "pip install -U vllm", "key: value",
    "key=lambda x: x[1]", "keys: ['a', 'b']", "for key in batch.keys()", "KeyError: 'tokens'",
    "KeyError: 'input_ids'", "missing key: 'reward'", "key_states = repeat_kv(key_states)", "primary_key=id",
    "AttributeError: 'Foo' object has no attribute 'token'", "author: Ada", "authors = ['x']",
    "auth: disabled", "authentication failed", "Authorization header missing", "authorized users only",
    "credentials not found", "secretary: Ada", "passed: 12 failed: 3", "pass: 3", "pass@1: 0.45", "pass@8=0.6",
    "passing x=3 to forward()", "compass=north", "bypass=1", "passage: text", "cookie cutter", "cookies",
    "cookie_file: /tmp/cookies.txt", "token_type_ids", "logprobs of token 123: -0.5", "token 'the' id 262",
    "unexpected token < at 3", "token is invalid", "Token indices sequence length is longer than 2048",
    "SyntaxError: invalid token", "HF_TOKEN is not set", "Set HF_TOKEN or run hf auth login",
    "pass --token to log in", "password is required", "key_padding_mask=None", "kv_cache_dtype=fp8",
    "attention_mask", "--kv-transfer-config", "num_key_value_heads=8", '"num_key_value_heads": 8', "monkey=1",
    "hotkey=ctrl", "keyword=value", "keyboard: us", "file: secrets.py", "import secrets",
    "token_ids=[1, 2, 3]", "from getpass import getpass", "loss: 0.1, kl: 0.02, tokens: 4096",
    "reward_token_level=True", "token_level_rewards", "loss_agg_mode=token-mean", "loss_agg_mode: token-mean",
    "--loss-agg-mode token-mean", "importance_sampling_level=token", "level: sequence",
    "stop_token_ids: [151645]", "first_token_latency: 0.12", "time per output token: 12 ms", "per_token_logps",
    "image_token_index=32000", "vllm==0.8.5", "worker-0:29500", "step:10 - loss:0.1", "a:b@c",
    "tokenizer.json", "special_tokens_map.json", "secret sauce", "kubectl get secret hf-token", "tokens=1,234",
    "name: token-budget", "password_file: /run/secrets/pw", "api_key_file=/etc/key",
    "token_path: ~/.cache/token",
    "HF_TOKEN=$HF_TOKEN", "HF_TOKEN=${HF_TOKEN}", 'key: "${WANDB_API_KEY:-}"', 'api_key: "${WANDB_API_KEY:-}"',
    "password: ${oc.env:DB_PASSWORD}", "password: ${oc.env:DB_PASSWORD,null}", "--token $HF_TOKEN --lr 1",
    "token: ${{ secrets.HF_TOKEN }}", "cookie-cutter==2.6.0", "Authorization: required",
    "invalid token: unexpected EOF", "/data/tokens/x", "password: none", "Config(token=None,lr=3)", "token=true.",
    "| token | logprob |", "| max_tokens | 512 |", "  max_tokens ........... 512", "rank 3 on cuda:0", "node: v18.2",
    "node: 3", "token: Optional[str] = None", "api_key: str | None = None", "max_tokens=512;lr=3",
    "Config(max_tokens=512,lr=3)",
]  # fmt: skip


def test_harmless_texts_are_unchanged():
    assert [text for text in HARMLESS if redact(text) != text] == []
