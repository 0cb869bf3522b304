"""Shapes that a stranger tried on the door to others: issuers, names, places in a text, persons, machines.

Nothing in this file is a secret: `{r20}` stands for twenty letters and digits, `{h32}` for hexadecimal ones, `{w}` for
a password, `{n}` for a user and `{m}` for a machine, and they are put in when the test runs.
"""

import random
import re
import string
import time

import pytest

from diagnostics import __main__ as command
from diagnostics.collect.secrets import mask
from diagnostics.output.personal import strip
from tests.diagnostics import secret_cases

ISSUED = """
glcbt-64_{r20}|gloas-{h64}|GR1348941{r20}|xoxd-{r60}|discord {r24}.{r6}.{r27}|bot token 987654321:AA{r33}|sess-{r40}
rpa_{r44}|csk-{r48}|pa-{r43}|jina_{h32}{r28}|tvly-{r32}|lsv2_pt_{h32}_{h10}|pcsk_{r70}|AKLT{r43}|LTAI5t{r18}
AKID{r32}|GOCSPX-{r28}|{r3}8Q~{r34}|ATBB{r32}|rubygems_{h48}|hvs.{r90}|dp.pt.{r43}|sntrys_eyJ{r100}|NRAK-{u27}
glsa_{r32}_{h8}|glc_{r100}|key-{h32}|SK{h32}|whsec_{r32}|HRKU-{r60}|ntn_{r46}|secret_{r43}|figd_{r40}|v1.0-{h24}-{h146}
PMAK-{h24}-{h34}|pscale_tkn_{r43}|fo1_{r43}|FlyV1 fm2_{r100}|nfp_{r36}|KGAT_{h32}|{r14}.atlasv1.{r65}
secret_acme_{h32}.{r32}
https://hooks.slack.com/services/T{u8}/B{u8}/{r24}|https://api.telegram.org/bot123456789:AA{r33}/sendMessage
https://hooks.zapier.com/hooks/catch/123456/{r7}/|https://open.larksuite.com/open-apis/bot/v2/hook/{r36}
https://sctapi.ftqq.com/SCT{r40}.send|https://api.day.app/{r22}/title|https://maker.ifttt.com/trigger/x/with/key/{r22}
https://ntfy.sh/topic?auth={r30}|https://conda.anaconda.org/t/ac-{r30}/acme|eyJhbGciOiJkaXIifQ..{r16}.{r40}.{r22}
$2b$12${r53}|bob:$6$salt${r60}:19000|pushkey={r30}|HUAWEICLOUD_SDK_SK={r40}|x-oss-signature={h64}|q-ak=AKID{r32}
AZURE_DEVOPS_EXT_PAT={r52}|Ocp-Apim-Subscription-Key: {h32}|_auth={r27}==|"auth": "{r40}"|KAGGLE_KEY={h32}|"key":"{h32}"
"""
PLACED = r"""
non-default args: {'api_key': ['{w}'], 'model': 'x'}|args: Namespace(api_key=['{w}'], x=1)|['--api-key', '{w}']
["--token", "{w}"]|('password', '{w}')|{\"password\": \"{w}\"}|{b'password': b'{w}'}|password=\"{w}\"
<password>{w}</password>
<ApiKey>{w}</ApiKey>|"password" => "{w}"|password -> {w}|password := {w}|password is {w}|password for bob: {w}
using token {w}
Incorrect API key provided: {w}|password%3D{w}|token%3D{w}%26x|password&#61;{w}|client-key-data: {w}|bindpw: {w}
client-certificate-data: {w}|auth_key={w}|SIGNING_KEY={w}|ENCRYPTION_KEY={w}|GIT_PAT={w}|Driver=x;Uid=bob;Pwd={w};
AUTH {w}|requirepass {w}|curl -u admin:{w} https://x|curl --user "admin:{w}" https://x|sshpass -p {w} ssh gpu1
docker login -u bob -p {w} reg|mysql -uroot -p{w} db|unzip -P {w} x.zip|7z x -p{w} a.7z|ssh-keygen -N {w}
swanlab login -k {w}
IDENTIFIED BY '{w}'|ALTER USER x WITH PASSWORD '{w}'|aws configure set aws_secret_access_key {w}|https://x/y?key={w}
Cookie: csrftoken=abc; sessionid={w}|cookies={'session': '{w}'}|postgres://bob:p@ss{w}@db/x|postgres://bob:p#ss/{w}@db/x
https://x/?to=https%3A%2F%2Fbob%3A{w}%40db|Passwort: {w}|mot de passe : {w}|contraseña: {w}|密码: {w}
"""
PERSONS = r"""
/home2/{n}/x|/nfs/home/{n}/p|/lustre/home/{n}/p|/scratch/users/{n}/p|/mnt/{n}/x|/project/{n}/x|/shared/{n}/x
/Volumes/{n}/x
/cephfs/{n}/x|/afs/cs.acme.edu/user/z/zo/{n}/x|c:/users/{n}/p|\\files\users\{n}\p|hdfs:///user/{n}/x|s3://b/users/{n}/x
%2Fhome%2F{n}%2Fx|USER={n}|LOGNAME={n}|"user": "{n}"|username={n}|uid=1000({n}) gid=1000({n})|SLURM_JOB_USER={n}
ssh {n}@gpu1|(venv) [{n}@gpu1 x]$ python|Author: {n} <a@b.org>|"{n} x"@acme.com|{n}%40acme.com|sudo: {n} : TTY=pts
/tmp/torchinductor_{n}/x|/run/user/{n}|https://wandb.ai/{n}/proj/runs/abc|Currently logged in as: {n} (team)
{m}:4321:4321 [0] NCCL INFO x|--master_addr {m}|--rdzv_endpoint={m}:29500|SLURM_JOB_NODELIST={m}|Failed to resolve '{m}'
ssh: connect to host {m} port 22|Permanently added '{m}'|Last login: Mon from {m}|srun: error: {m}: task 0: Killed
STEP 1.0 ON {m} CANCELLED|Jan  1 00:00:00 {m} kernel: oom|failed to connect to [{m}]:29500|\\{m}\share|{m}:/export/home
{m}.cluster.acme.com|001b.4411.3ab7|Serial Number: {u12}
"""
STAYS = """
commit 3f4e5d6c7b8a9d0e1f2a3b4c5d6e7f8091a2b3c4|cublas 12.8.4.1|numpy@1.26|matmul A@B.T|reward_fn_key=data_source
DeepseekV3ForCausalLM failed|Qwen2_5_VLForConditionalGeneration|missing keys: ["pad_token", "eos_token"]|PWD=/opt/x
_ZN3c105ErrorC2ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE|num_key_value_heads=8
sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08|key: model.layers.0.self_attn.q_proj.weight
deepseek-ai/DeepSeek-R1-Distill-Qwen-32B|token: 151643 is out of range|NVIDIA-A100-SXM4-80GB|auth: required
a token was dropped
session_2025-01-01_00-00-00_123456_789|credentials: Unable to locate credentials|token_level_scores shape (3, 4)
AUTH required
{"pwd": "/opt/run"}|forward pass: 3.2 ms|Basic checks passed in 12 s|Linux kernel 5.15.0|0x7f3a5c00c4a1b2
md5 9f86d081884c3d659a2feaa0c55ad015|echo done \x7c tee x.log|torch::cat::add|key: value pairs
user: role not allowed|docker run -p 8000:8000 img|/tmp/ray/session_latest/logs|http://localhost:8000/v1/models/x@main
"""
KINDS = {
    "r": string.ascii_letters + string.digits,
    "h": string.hexdigits[:16],
    "u": string.ascii_uppercase + string.digits,
}


def cases(listed):
    return [one for row in listed.strip().splitlines() for one in row.split("|")]


def made(shape, number):
    """The shape with its places filled, and what was filled in."""
    drawn, values = random.Random(number), []

    def filled(match):
        kind, length = match[1], int(match[2] or 0)
        if kind in KINDS:
            # Each holds one letter of each kind, as nearly all that are drawn at random do.
            value = "".join(drawn.choice(KINDS[kind]) for _ in range(length))
            value = ("a1B" + value[3:] if kind == "r" and length > 5 else value)[:length]
        else:
            value = {"w": "Zx9qLm4RtVbK", "n": "qzoltan", "m": "qzdgx-17"}[kind]
        values.append(value)
        return value

    return re.sub(r"\{([rhuwnm])(\d*)\}", filled, shape), [value for value in values if len(value) > 6]


@pytest.mark.parametrize(("number", "shape"), list(enumerate(cases(ISSUED) + cases(PLACED))))
def test_no_secret_of_a_stranger_comes_out(number, shape):
    """Whoever issued it, wherever it is put; also in the middle of a sentence."""
    text, values = made(shape, number)
    for around in ("{}", "ValueError: {} (in f)"):
        told = mask(around.replace("{}", text))
        assert [value for value in values if value in told or value[:24] in told] == []


@pytest.mark.parametrize(("number", "shape"), list(enumerate(cases(PERSONS))))
def test_no_person_and_no_machine_comes_out(number, shape):
    """Users, their folders, and machines, in the words of the programs that print them."""
    text, values = made(shape, number)
    assert [value for value in [*values, "3ab7"] if value in strip(text)] == []


def left(secret, told):
    """Whether a secret stands in what is told, or enough of a long one to go on from."""
    return secret in told or (
        len(secret) >= 24 and any(secret[at : at + 12] in told for at in range(len(secret) - 11))
    )


@pytest.mark.parametrize(("made_up", "least"), [(secret_cases.secrets, 2500), (secret_cases.persons, 1000)])
def test_nothing_of_a_list_made_without_a_look_at_the_patterns_comes_out(made_up, least):
    """Each secret and each person in each context; at first sight a seventeenth of the secrets came out."""
    listed = list(made_up())
    assert len(listed) >= least
    assert [(name, text) for name, secret, text in listed if left(secret, strip(text))] == []


@pytest.mark.parametrize("text", cases(STAYS))
def test_what_a_diagnosis_needs_stays(text):
    """Revisions, releases, classes, mangled names, keys of a plan."""
    text = text.replace(r"\x7c", "|")
    assert strip(text) == text


FAILED = 'Traceback (most recent call last):\n  File "{}", line 3, in main\n    x()\nOwnError: {}\n'
FOLDERS = [
    "/home/", "/Users/", "/scratch/", "/fsx/", "/nfs/home/", "/lustre/home/", "/u/", "/data/", "/workspace/", "/mnt/",
    "/gpfs/users/", "/project/",
]  # fmt: skip
SHARED = ["json", "jsonl", "sarif", "junit", "github", "markdown"]


PLACES = [f"{folder}qzoltan/{('', 'run/')[at % 2]}train.py" for at, folder in enumerate(FOLDERS)]


@pytest.mark.parametrize("form", SHARED)
def test_a_user_is_taken_out_before_a_path_is_cut(form, tmp_path, capsys):
    """`/home/ada/train.py` was cut to `ada/train.py`, in which nothing says that a user is called so."""
    for at, place in enumerate(PLACES):
        log = tmp_path / f"{at}.log"
        log.write_text(FAILED.format(place, "y"))
        command.main(["triage", "--format", form, str(log)])
        told = capsys.readouterr().out
        assert "OwnError" in told
        assert "qzoltan" not in told


@pytest.mark.parametrize("form", ["json", "markdown", "html"])
def test_a_user_is_taken_out_of_a_dump(form, tmp_path, capsys):
    """Of each process's command and of its frames."""
    dump = tmp_path / "dump.txt"
    dump.write_text(
        "\n".join(
            f"Process {pid}: python {place}\nPython v3.11.2 (/usr/bin/python3)\n\n"
            f'Thread {pid} (idle): "MainThread"\n    wait (threading.py:1)\n    main ({place}:3)\n'
            for pid, place in enumerate(PLACES, start=12)
        )
    )
    command.main(["hang", "--format", form, "--from", str(dump)])
    told = capsys.readouterr().out
    assert told.count("train.py") >= len(PLACES)
    assert "qzoltan" not in told


def test_vllms_own_line_gives_no_key_away(tmp_path, capsys):
    """It prints its arguments as a dictionary of lists; a failed child's command is a list of words."""
    word = made("{w}", 0)[1][0]
    log = tmp_path / "run.log"
    for line in (
        f"non-default args: {{'api_key': ['{word}']}}",
        f"Command '['vllm', 'serve', '--api-key', '{word}']'",
    ):
        log.write_text(
            f'Traceback (most recent call last):\n  File "/opt/a.py", line 3, in f\n    x()\nOwnError: {line}\n'
        )
        for form in [*SHARED, "terminal"]:
            command.main(["triage", "--format", form, str(log)])
            assert word not in capsys.readouterr().out


PIECES = [
    "token", "password", "'--token', '", "<token>", "://a:b", "%3A%2F%2Fa%3A", "/home/", "users/", "curl -u ",
    "AUTH ", "ssh ", "[a@", "USER=", "Author: ", "cookies={", "key=", "_Z", "hvs.", "1:AA", "$1$", "://hooks.a/",
    "x.", "a%40", "NCCL ",
]  # fmt: skip


@pytest.mark.parametrize("piece", PIECES)
def test_what_is_repeated_costs_what_it_is_long(piece):
    """Four times the text costs no more than some four times as much, however it is gone on with."""
    for more in ("", " ", "a" * 16, "a." * 8):
        part = piece + more

        def cost(length, part=part):
            text, began = part * (length // len(part)), time.process_time()
            strip(text)
            return time.process_time() - began

        assert min(cost(40_000) for _ in range(2)) < 10 * min(cost(10_000) for _ in range(3)) + 0.05, more
