"""The door to others: no secret and no person in anything that is pasted somewhere, and no text that takes long."""

import json
import re
import time
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diagnostics import __main__ as command
from diagnostics.collect import variables
from diagnostics.collect.secrets import mask
from diagnostics.output import output
from diagnostics.output.output import FORMATS
from diagnostics.output.personal import strip
from tests.diagnostics.test_door_out import report_with, terminal
from tests.diagnostics.test_output import LOG, SCRIPT

# Put together here, so that none stands in the repository: what reads it for secrets finds nothing.
LETTERS = "aB3dE5gH7jK9mN1pQ4rS6tU8vW0xY2zC5eF7hJ"
HEX = "0a1b2c3d4e5f60718293a4b5c6d7e8f9"


def issued(head, length=36):
    return head + (LETTERS * 4)[:length]


SECRETS = {
    "bearer": ("Authorization: Bearer {}", issued("", 30)),
    "basic": ("'Authorization': 'Basic {}'", issued("", 24) + "=="),
    "digest": ('Authorization: Digest username="ada", response="{}"', HEX),
    "other scheme": ("authorization: Hawk id={}", issued("", 20)),
    "the end of it": ("20261122/y, SignedHeaders=host, Signature={}", HEX * 2),
    "a scheme taken for a path": ("postgres:/ada:{}@db:5432/x", "hunter2four"),
    "aws4": ("Authorization: AWS4-HMAC-SHA256 Credential=x/20261122/y, Signature={}", HEX * 2),
    "x-api-key": ("x-api-key: {}", issued("", 20)),
    "hugging face": ("{}", issued("hf" + "_", 34)),
    "openai": ("{}", issued("sk" + "-proj-", 40)),
    "anthropic": ("{}", issued("sk" + "-ant-api03-", 60)),
    "ghp": ("{}", issued("gh" + "p_")), "ghu": ("{}", issued("gh" + "u_")), "ghs": ("{}", issued("gh" + "s_")),
    "github fine": ("{}", issued("github" + "_pat_", 60)), "gitlab": ("{}", issued("gl" + "pat-", 20)),
    "google": ("{}", issued("AI" + "za", 35)), "google oauth": ("{}", issued("ya" + "29.", 60)),
    "aws id": ("{}", "AK" + "IA" + "Q3EGRT7YUIOPASDF"), "aws session id": ("{}", "AS" + "IA" + "Q3EGRT7YUIOPASDF"),
    "aws secret": ("aws_secret_access_key = {}", issued("", 40)),
    "aws session": ("AWS_SESSION_TOKEN={}", issued("FwoG", 120)),
    "presigned": ("https://b.s3.amazonaws.com/k?X-Amz-Credential=c&X-Amz-Signature={}", HEX * 2),
    "sas": ("https://a.blob.core.windows.net/c?sv=2024&sig={}", issued("", 43) + "%3D"),
    "azure": ("DefaultEndpointsProtocol=https;AccountName=a;AccountKey={};EndpointSuffix=x", issued("", 86) + "=="),
    "npm": ("{}", issued("np" + "m_")), "pypi": ("{}", issued("py" + "pi-AgEIcHlwaS5vcmc", 70)),
    "nvidia": ("{}", issued("nv" + "api-", 64)), "databricks": ("{}", "da" + "pi" + HEX),
    "replicate": ("{}", issued("r8" + "_", 37)), "slack": ("{}",
    "xo" + "xb-123456789012-1234567890123-" + LETTERS[:24]),
    "stripe": ("{}", issued("sk" + "_live_", 24)), "jwt": ("{}", "ey" + f"JhbGciOiJI.{LETTERS[:30]}.{LETTERS[:30]}"),
    "wandb": ("wandb: {}", HEX + "0a1b2c3d"),
    "private key": ("-----BEGIN " + "RSA PRIVATE KEY----- {}", issued("MIIE", 100)),
    "key's line": ("{}", issued("", 64)),
    "url": ("postgres://ada:{}@db:5432/x", "hunter" + "2four"), "no scheme": ("redis ada:{}@db:6379",
    "hunter" + "2four"),
    "variable": ("PGPASSWORD={}", "correct" + "horse"), "yaml": ("db_password: '{}'", "correct" + "horse"),
    "json": ('"client_secret": "{}"', "correct" + "horse"), "flag": ("--hub_token {}", "correct" + "horse7"),
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
}  # fmt: skip
SHAPES = SECRETS | PERSONS
SHARED = [form for form in FORMATS if form != "terminal"]


def parts_in(text, secret):
    """Whether a secret stands in a text, or enough of it to use."""
    return [part for part in re.split(r"[\s/]", secret) if len(part) > 4 and part in text]


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("tool", ["doctor", "lint", "triage"])
def test_what_is_shared_holds_none(name, tool):
    """Each shape, at every place of a report of each command, in each format; a secret not even in the terminal."""
    text, secret = SHAPES[name]
    report = report_with(f"value {text.format(secret)} end", tool)
    for form in FORMATS if name in SECRETS and SHAPES[name] is SECRETS.get(name) else SHARED:
        with terminal() as (out, _):
            output.write(report, SimpleNamespace(format=form, fail_on="error", verbose=True))
        told = re.sub(r"\n\s*", " ", out.getvalue()) if form == "terminal" else out.getvalue()
        assert parts_in(told, secret) == [], form


def everything():
    return [text.format(secret) for text, secret in SHAPES.values()]


@pytest.mark.parametrize("form", SHARED)
@pytest.mark.parametrize("tool", ["doctor", "lint", "triage", "facts", "plan", "group"])
def test_no_command_lets_one_out(environment, tmp_path, monkeypatch, capsys, tool, form):
    """From a log, a script, variables and an environment's folder to what each command writes."""
    if (tool in {"facts", "group"} and form != "json") or (
        tool == "plan" and form not in {"json", "markdown"}
    ):
        pytest.skip("this has no such format")
    for number, (text, secret) in enumerate(SHAPES.values()):
        monkeypatch.setenv(f"RAY_{number}_JSON_ENV_VAR", f'{{"env": "{text.format(secret)}"}}')
        monkeypatch.setenv(f"VLLM_{number}", text.format(secret))
        monkeypatch.setenv(f"NCCL_{number}", text.format(secret))
    monkeypatch.setenv("RAY_ADDRESS", f"http://ada:{SECRETS['url'][1]}@10.20.30.40:8265")
    monkeypatch.setenv("https_proxy", f"http://ada:{SECRETS['url'][1]}@proxy:3128/{SECRETS['ghp'][1]}")
    environment.add("vllm", "0.7.3").add("odd", "", folder="odd-" + SECRETS["hugging face"][1] + ".dist-info")
    if tool in {"doctor", "facts", "plan"}:
        words = {"facts": ["--facts-json"], "plan": ["--fix-plan", "--format", form]}.get(
            tool, ["--format", form]
        )
        command.main(["doctor", "--prefix", str(environment.prefix), *words])
    elif tool == "lint":
        script = tmp_path / "run.sh"
        values = " ".join(f"--run_name '{line}'" for line in everything() if "'" not in line)
        script.write_text(f"{SCRIPT.rstrip()} {values}\n")
        command.main(["lint", "--format", form, str(script)])
    else:
        log = tmp_path / "run.log"
        errors = "".join(f"{LOG.replace('already in use', line)}KeyError: {line}\n" for line in everything())
        log.write_text(LOG + errors)
        command.main(["triage", *(["--group"] if tool == "group" else []), "--format", form, str(log)])
    out, err = capsys.readouterr()
    assert out
    for _, secret in SHAPES.values():
        assert parts_in(out + err, secret) == []


def test_what_a_header_takes_along_leaves_no_value_bare():
    """All behind it went up to a quote, the name of a password too, and the password in the quotes stayed."""
    for text in (
        "authorization: Hawk id=7 db_password: '{}'",
        "authorization: Hawk id=7, password='{}', n=1",
    ):
        assert "correcthorse" not in mask(text.format("correcthorse"))


def found_by(detector, text):
    return {secret.secret_value for line in text.splitlines() for secret in detector.scan_line(line)}


def test_a_real_detector_finds_nothing_in_what_is_shared(tmp_path, capsys):
    """It knows many of the shapes where they are, and none of what it knows comes out."""
    detector = pytest.importorskip(
        "detect_secrets.core.scan", reason="detect-secrets comes with the group test"
    )
    loaded = pytest.importorskip("detect_secrets.settings")
    plugins = [
        "ArtifactoryDetector", "AWSKeyDetector", "AzureStorageKeyDetector", "BasicAuthDetector", "CloudantDetector",
        "DiscordBotTokenDetector", "GitHubTokenDetector", "GitLabTokenDetector", "JwtTokenDetector",
        "KeywordDetector",
        "MailchimpDetector", "NpmDetector", "OpenAIDetector", "PrivateKeyDetector", "PypiTokenDetector",
        "SendGridDetector", "SlackDetector", "SquareOAuthDetector", "StripeDetector", "TelegramBotTokenDetector",
        "TwilioKeyDetector",
    ]  # fmt: skip
    log = tmp_path / "run.log"
    lines = [text.format(secret) for text, secret in SECRETS.values()]
    log.write_text("".join(f"{LOG.replace('already in use', line)}KeyError: {line}\n" for line in lines))
    with loaded.transient_settings({"plugins_used": [{"name": name} for name in plugins]}):
        known = found_by(detector, "\n".join(lines))
        assert len(known) >= 12
        for form in FORMATS:
            command.main(["triage", "--format", form, str(log)])
            out, err = capsys.readouterr()
            assert [value for value in known if value in out + err] == []
            assert found_by(detector, out.replace("<secret>", "")) == set()


TEXTS = st.lists(
    st.one_of(
        st.sampled_from([text.format(secret) for text, secret in SHAPES.values()]),
        st.sampled_from(["<", ">", "=", ": ", "@", "//", "::", "/home/", "/data/", "--token ", "host=",
        '"', "'", "%", "\n"]),
        st.text(max_size=6),
    ),
    max_size=8,
).map("".join)  # fmt: skip


@settings(max_examples=400, deadline=None)
@given(TEXTS)
def test_taking_out_is_done_in_one_step(text):
    """A report that is read as a baseline and taken out again is the same."""
    assert mask(mask(text)) == mask(text)
    assert strip(strip(text)) == strip(text)


LONG = {
    "underscores": "_" * 60, "underscored": "a_" * 50_000 + " = 3", "dots": "a." * 50_000, "words": "token" * 20_000,
    "flags": "--" * 50_000, "flag": "--" + "a-" * 50_000, "jwt": "eyJ" + "-eyJ" * 25_000, "colons": ":a" * 50_000,
    "hex": "0:" * 50_000, "at": "a@" * 50_000, "mail": "a" * 100_000, "dashes": "a-" * 50_000,
    "slashes": "/" * 100_000,
    "urls": "://" * 33_000, "hosts": "//a" * 33_000, "host": "host" * 25_000, "hosts=": "_host=" * 16_000,
    "quotes": "authorization: " + '"' * 100_000, "authorization": "authorization:" * 7_000, "digits": "1." * 50_000,
    "begin": "-----BEGIN A PRIVATE KEY-----" * 3_400, "login": "a:b" * 33_000, "long": "A" * 100_000,
    "tilde": "~a" * 50_000,
    "homes": "/home/" * 16_000, "data": "/data/a" * 14_000, "blanks": "token" + " " * 100_000,
    "bearer": "bearer " * 14_000,
    "plus": "a+" * 50_000, "c": "\\" * 100_000 + "Users", "cookie": "cookie" * 16_000, "sig": "?sig" * 25_000,
    "equals": "token=" * 16_000, "drive": "C:" + "\\" * 100_000, "dashed": "0a-" * 33_000,
    "key": "-----BEGIN " * 9_000,
}  # fmt: skip


def cost(text):
    best = float("inf")
    for _ in range(3):
        began = time.process_time()
        strip(text)
        best = min(best, time.process_time() - began)
    return best


@pytest.mark.parametrize("name", LONG)
def test_no_text_takes_longer_than_its_length(name):
    """100 kB made to be slow cost no more than a few times what ordinary text of a hundredth costs, a hundredfold."""
    text = LONG[name]
    prose = ("Traceback of rank 3: value num_generations = 8 at train/run.py:12, see docs.\n" * 20)[:1000]
    usual = min(cost(prose * 10) for _ in range(3)) * len(text) / 10_000
    assert cost(text) < 20 * usual + 0.02


def test_the_parameter_with_underscores(capsys, tmp_path):
    """It took five seconds with 24 of them, and was killed with 60."""
    log = tmp_path / "run.log"
    log.write_text(f"{LOG}KeyError: '{'a_' * 60}'\n")
    for form in FORMATS:
        assert command.main(["triage", "--format", form, str(log)]) == 1
        assert capsys.readouterr().out


def test_values_are_read_by_a_list_of_names():
    """A job's whole description is not read, nor what somebody made up; what a run is decided by is."""
    seen = variables.collect(
        {
            "RAY_JOB_CONFIG_JSON_ENV_VAR": '{"runtime_env": {"env_vars": {"X": "y"}}}', "VLLM_OWN_NAME": "word",
            "HF_SOMETHING": "word", "VLLM_USE_V1": "0", "NCCL_DEBUG": "INFO",
            "NCCL_X": '{"a": "b"}', "VLLM_KNOWN": "3",
            "RAY_ADDRESS": "http://ada:word@head:8265", "HTTPS_PROXY": "http://ada:word@proxy:3128/p?k=v",
            "all_proxy": "socks5h://[fd00::1]:1080", "http_proxy": "not a proxy at all", "MASTER_ADDR": "node-0",
            "PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64, expandable_segments:True", "HOME": "/home/ada",
        },
        known=["VLLM_KNOWN"],
    )  # fmt: skip
    assert seen == {
        "RAY_JOB_CONFIG_JSON_ENV_VAR": variables.HIDDEN, "VLLM_OWN_NAME": variables.HIDDEN,
        "HF_SOMETHING": variables.HIDDEN, "VLLM_USE_V1": "0", "NCCL_DEBUG": "INFO", "NCCL_X": variables.HIDDEN,
        "VLLM_KNOWN": "3", "RAY_ADDRESS": "http://<secret>@head:8265", "HTTPS_PROXY": "proxy:3128",
        "all_proxy": "[fd00::1]:1080", "http_proxy": variables.HIDDEN, "MASTER_ADDR": "node-0",
        "PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64, expandable_segments:True",
    }  # fmt: skip


@pytest.mark.parametrize(
    "text",
    [
        "max_tokens = 8192", "pad_token_id=0", "tokenizer: Qwen/Qwen2.5-0.5B", "tokens per second: 1234",
        "std::vector<int>",
        "c10::Error", "[1::2]", "12:30:45.123", "nvidia-cublas-cu12==12.4.5.8", "vllm/vllm-openai:v0.8.5@sha256:abc",
        "/data/models/Qwen", "/workspace/run.sh", "/u/", "see docs/ci.md", "torch.distributed.init_process_group",
        "bearer of bad news", "authorization failed", "password", "a secret", "lr: 1e-6",
        "https://github.com/a/b/issues/3",
        "world_size=8", "ghost = 3", "localhost:8000", "http://127.0.0.1:8000", "::1", "host=localhost",
    ],
)  # fmt: skip
def test_what_says_nothing_of_anybody_stays(text):
    """Settings, names of C++, slices, times, releases, usual folders."""
    assert strip(text) == text


def test_a_document_keeps_releases_of_four_numbers(environment, capsys, monkeypatch):
    """They look like an address; under `version` they are none."""
    environment.add("nvidia-cublas-cu12", "12.4.5.8").add("vllm", "0.7.3")
    monkeypatch.setenv("MASTER_ADDR", "10.20.30.40")
    assert command.main(["doctor", "--facts-json", "--prefix", str(environment.prefix)]) == 0
    seen = json.loads(capsys.readouterr().out)["environment"]
    assert seen["packages"]["nvidia-cublas-cu12"]["version"] == "12.4.5.8"
    assert seen["variables"]["MASTER_ADDR"] == "<host>"
