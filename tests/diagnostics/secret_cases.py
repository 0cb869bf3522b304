r"""Generate fake secrets and personal data in the contexts where logs and configs show them, to test redaction.

The shapes follow the issuers' documentation and real program output, not our redaction patterns. Values are random
with a fixed seed: `{r20}` is twenty letters and digits, `{d9}` digits, `{h32}` hexadecimal digits, `{b48}` base64,
`{u16}` capitals and digits, `{s40}` letters, digits, `-` and `_`, and `{w}` a password.
"""

import random
import re
import string
from collections.abc import Iterator

# Category, secret value, and the text that contains it.
Case = tuple[str, str, str]

KINDS = {
    "r": string.ascii_letters + string.digits,
    "d": "123456789",
    "h": "0123456789abcdef",
    "b": string.ascii_letters + string.digits + "+/",
    "u": string.ascii_uppercase + "234567",
    "s": string.ascii_letters + string.digits + "-_",
}
ISSUED = [
    "hf_{r34}", "api_org_{r34}", "sk-{r48}", "sk-proj-{s74}T3BlbkFJ{s74}", "sk-ant-api03-{s93}AA",
    "sk-or-v1-{h64}", "sk-{h32}", "sk_live_{r24}", "ghp_{r36}", "gho_{r36}", "ghu_{r36}", "ghs_{r36}",
    "ghr_{r76}", "github_pat_{r22}_{r59}", "glpat-{s20}", "AIza{s35}", "AKIA{u16}", "ASIA{u16}",
    "npm_{r36}", "pypi-AgEIcHlwaS5vcmc{s130}", "nvapi-{s64}", "dapi{h32}", "dapi{h32}-2", "r8_{r37}",
    "ya29.{s120}", "ya29.a0{s60}", "eyJ{s33}.eyJ{s60}.{s43}", "xoxb-{d12}-{d12}-{r24}", "gsk_{r52}",
    "xai-{r80}", "tgp_v1_{s43}", "wandb_v1_{r77}", "hvs.{s90}", "dop_v1_{h64}", "SG.{s22}.{s43}",
    "lin_api_{r40}", "rpa_{u46}", "1//0{s60}", "GOCSPX-{s28}",
]  # fmt: skip
# Contexts of secrets that are recognised by shape; `%` is the secret's position.
PLAIN = r"""
{"model": "m", "x": "%"}|"{\"x\": \"%\"}"|x: %|  - %|export X=%|X='%' python train.py|{'x': '%', 'n': 1}|x=b'%'
Namespace(x='%', n=1)|['train.py', '--x', '%']|train.py --x=% --n 1|GET https://acme.org/p?x=%&n=1 HTTP/1.1
https://acme.org/p/%/download|git clone https://%@acme.org/o/r.git|pip install git+https://oauth2:%@acme.org/o/r.git
2025-11-22 10:00:00,123 INFO worker: got % from server|ERROR 11-22 10:00:00 client.py:12] invalid token %.|x = "%"
ValueError: Invalid user token: (%)|a,%,b|prefix_%|use `%` now|'line\n%\nend'|\x1b[32m%\x1b[0m|x:%|s3://bucket/%|<%>
"""
NAMES = [
    "password", "DB_PASSWORD", "PGPASSWORD", "MYSQL_PWD", "REDIS_PASSWORD", "passwd", "api_key", "apiKey",
    "WANDB_API_KEY", "OPENAI_API_KEY", "HF_TOKEN", "token", "auth_token", "access_token", "refreshToken",
    "client_secret", "AWS_SECRET_ACCESS_KEY", "aws_session_token", "secret", "SECRET_KEY", "private_token",
    "AZURE_STORAGE_KEY", "credential", "HUGGING_FACE_HUB_TOKEN", "passphrase", "NGC_API_KEY", "AccountKey",
    "SharedAccessKey", "storage_account_key", "COMET_API_KEY", "MLFLOW_TRACKING_PASSWORD",
    "SWANLAB_API_KEY", "encryption_key", "signing_key", "webhook_secret", "RAY_AUTH_TOKEN", "db-password",
    "X-API-Key",
]  # fmt: skip
# Contexts of secrets that are recognised by their name; `@` is the name.
NAMED = r"""
{"n": 1, "@": "%"}|"{\"@\": \"%\", \"n\": 1}"|@: %|  @: "%"|export @=%|@='%' python train.py|{'@': '%', 'n': 1}
Config(@='%', n=1)|Config(@=%, n=1)|[('@', '%'), ('n', '1')]|{b'@': b'%'}|['train.py', '--@', '%']|train.py --@=% --n 1
train.py --@ % --n 1|https://acme.org/p?n=1&@=%&m=2|2025-11-22 10:00:00,123 INFO worker: @=% ok|INFO @ : %|@ = "%"
docker run -e @=% image|trainer.@=%|+trainer.@='%'|@ -> %|the @ is %|setx @ %|environ({'@': '%'})|@: >-#    %#
| @ | % |
{#  "@":#    "%"#}|os.environ['@'] = '%'|os.environ["@"]="%"|@=SecretStr('%')|- name: @#  value: %
<add key="@" value="%"/>
{"name": "@", "value": "%"}|@="two words %"|@: 'it''s %'|@="a\"%"
"""
HEADERS = """
Authorization: Bearer %|Authorization: Basic %|authorization: token %|Authorization: ApiKey %|Authorization: Negotiate %
Authorization: %|Proxy-Authorization: Basic %|X-Api-Key: %|api-key: %|x-goog-api-key: %|Ocp-Apim-Subscription-Key: %
PRIVATE-TOKEN: %|X-Vault-Token: %|X-Auth-Token: %|Cookie: session=%; theme=dark|Set-Cookie: sid=%; Path=/; HttpOnly
Authorization: AWS4-HMAC-SHA256 Credential=x/20251122/us-east-1/s3, SignedHeaders=host, Signature=%|X-CSRF-Token: %
Authorization: CustomScheme id=7,sig=%|X-Hub-Signature-256: sha256=%|x-amz-security-token: %
"""
# Contexts of HTTP headers; `@` is the header's name, `%` its value.
HEADER_CONTEXTS = r"""
@: %|curl -H '@: %' https://acme.org|curl --header "@: %" https://acme.org|DEBUG http: send: @: %\r\n|> @: %
b'GET / HTTP/1.1\r\n@: %\r\nHost: x\r\n'|{"@": "%"}|{'@': '%', 'n': 1}|(b'@', b'%')|@:[%]
"""
# Other secrets; the last braces contain the secret.
OTHERS = r"""
https://b.s3.amazonaws.com/k?X-Amz-Date=20251122T000000Z&X-Amz-Signature={h64}|session_id={h40}|KAGGLE_KEY={h40}
https://acct.blob.core.windows.net/c/f?sv=2022-11-02&sr=c&sp=r&sig={b43}%3D|https://acme.org/b/o?X-Goog-Signature={h256}
AccountName=acct;AccountKey={b86}==;EndpointSuffix=core.windows.net|SharedAccessKeyName=root;SharedAccessKey={b43}=
https://hooks.slack.com/services/T{u8}/B{u8}/{r24}|https://discord.com/api/webhooks/{d18}/{s68}|{d9}:AA{s33}
redis://:{w}@10.0.0.5:6379/0|curl -u admin:{w} https://x|curl --user admin:{w} https://x|sshpass -p {w} ssh host
machine api.wandb.ai login user password {w}|machine x#  login y#  password {w}#|wandb login {h40}|mysql -u root -p{w}
wget --http-password={w} x|//registry.npmjs.org/:_authToken={w}|"auth": "{b32}"|docker login -u bob -p {w} reg
WANDB_KEY={h40}
echo {w} | docker login --password-stdin|huggingface-cli login --token {w}|openssl -passin pass:{w}|IDENTIFIED BY '{w}'
Server=x;User Id=sa;Pwd={w};|Data Source=x;Password={w}|jdbc:mysql://h/db?user=u&password={w}|ldap_bind_pw={w}
trainer.logger.wandb.key={h40}|requirepass {w}|ray start --redis-password={w}|api_key=["{w}"]|password = b'{w}'
os.environ.setdefault("HF_TOKEN", "{w}")|+ export WANDB_API_KEY={h40}|declare -x HF_TOKEN="{w}"|<password>{w}</password>
Enter password: {w}|Using token {w}|Bearer {w}|Basic {b32}|?access_token={w}|%26token%3D{w}%26|&sig={w}|&signature={h40}
http://localhost:8888/?token={h40}|wandb: Appending key for api.wandb.ai: {h40}|{"username":"bob","key":"{h40}"}
"""
LOGINS = """
%|connect %/db failed|proxy=%|'%'|{"proxy": "%"}|http_proxy=%|redis://%|postgresql+psycopg2://%/x|mongodb+srv://%/?w=1
dial %: refused|(%)|- %|scp x %:/tmp
"""
KEYS = "RSA PRIVATE KEY|OPENSSH PRIVATE KEY|EC PRIVATE KEY|PRIVATE KEY|ENCRYPTED PRIVATE KEY|PGP PRIVATE KEY BLOCK"
JOINS = ("\n", "\\n", "\r\n", "\\\\n", " ", "\n    ", "\n> ", "\n2025-11-22 INFO ")
AROUND = r"""
%|see %.|'%'|{"x": "%"}|x=%|x: %|(%)|[%]|2025-11-22 10:00:00 INFO a.py:12] at % now|a,%,b|%:|<%>|--x=%|x:%|\n%\n|b'%'
(%, 1)|https://h.acme.org/?q=%
"""
# The personal data is in the braces.
PERSONS = r"""
{ada.q@corp.acme.org}|{ada+q@gmail.com}|{ADA@ACME.ORG}|{3c:ec:ef:12:ab:9f}|{3C-EC-EF-12-AB-9F}|{3cec.ef12.ab9f}
{00:00:10:29:fe:80:00:00:00:00:00:00:50:6b:4b:03:00:c4:a1:b2}
{fe80::3eec:efff:fe12:ab9f}%eth0|{2001:db8::1f}|{fd00:1:5::9abc}
{::ffff:10.11.12.13}|{fe80::1}%ib0|[{2001:db8::1f}]:29500
{2001:db8::1f}/64|{10.11.12.13}|{10.11.12.13}:29500
tcp://{10.11.12.13}:29500|{ip-10-11-12-13}|{ip-10-11-12-13.ec2.internal}|{ec2-54-21-33-77.compute-1.amazonaws.com}
{i-0abc1234def567890}|{trainer-1.c.my-project-123.internal}|{gke-prod-gpu-pool-1a2b3c4d-x9yz}|{vm17.eastus.cloudapp.azure.com}
{aks-gpupool-12345678-vmss000001}|{w-3.ray-head.default.svc.cluster.local}|{login1.hpc.acme.edu}|{cust-1234.run.app}
{abc.ngrok.io}|{job-xyz.modal.run}|https://{wandb.corp.acme.com}/x|{vm-1.novalocal}|/home/{qzada}/x|/Users/{qzada}/x
/u/{qzada}/x|/fsx/{qzada}/x|/workspace/{qzada}/x|/data/{qzada}/x|/scratch/{qzada}/x|/mnt/home/{qzada}/x
/gpfs/home/{qzada}/x
/lustre/users/{qzada}/x|/afs/uni/user/{qzada}/x|/home/users/{qzada}/x|/media/{qzada}/x|/net/scratch/{qzada}/x
\/home\/{qzada}\/x
/u/{qzada}|/fsx/{qzada}|/data/{qzada}|/workspace/{qzada}|C:\Users\{qzada}\x|%2Fhome%2F{qzada}%2Fx|~{qzada}/x
{qzada}@gpu17:~$ ls
{8f2b6c1e-3a4d-4e5f-9a0b-1c2d3e4f5a6b}|GPU-{8f2b6c1e-3a4d-4e5f-9a0b-1c2d3e4f5a6b}|{8f2b6c1e3a4d4e5f9a0b1c2d3e4f5a6b}
node_{8f2b6c1e-3a4d-4e5f-9a0b-1c2d3e4f5a6b}|{8F2B6C1E-3A4D-4E5F-9A0B-1C2D3E4F5A6B}.json
"""
PERSONS_IN_CONTEXT = """
SLURMD_NODENAME={gpu-q17}|serve --host {gpu-q17}|rdzv_endpoint={gpu-q17}:29500|Linux {gpu-q17} 5.15.0-91-generic #1 SMP
[{gpu-q17}:12345] *** Process received signal ***|{qzbob}:x:1001:1001:{Bob Jones}:/home/{qzbob}:/bin/bash
HOME=/export/{qzbob}
drwxr-xr-x 2 {qzbob} {qzbob} 4096 Nov 22 x
"""


def split_table(text: str) -> list[str]:
    """Split a table at `|` and line ends; `#` stands for a line end in an entry."""
    forms = [form for row in text.strip().splitlines() for form in re.split(r"\|(?! )", row) if form]
    return [form if "#1" in form else form.replace("#", "\n") for form in forms]


def fill_shape(draw: random.Random, shape: str) -> tuple[str, list[str]]:
    """Replace the placeholders of a shape by random values; return the text and the values."""
    filled: list[str] = []

    def fill_placeholder(match: re.Match[str]) -> str:
        if match[1] == "w":
            value = "".join(draw.sample(string.ascii_letters, 10)) + "42" + draw.choice("!^*_-") + "x"
        else:
            value = "".join(draw.choice(KINDS[match[1]]) for _ in range(int(match[2])))
        filled.append(value)
        return value

    return re.sub(r"\{([rdhbusw])(\d*)\}", fill_placeholder, shape), filled


def secrets() -> Iterator[Case]:
    """Yield every secret in every context."""
    draw = random.Random(15)
    yield from _issued(draw)
    yield from _named_secrets(draw)
    yield from _logins_and_keys(draw)


def _issued(draw: random.Random) -> Iterator[Case]:
    """Yield tokens that are recognised by their shape."""
    for shape in ISSUED:
        for form in split_table(PLAIN):
            value = fill_shape(draw, shape)[0]
            yield shape, value, form.replace("%", value)
    for shape in split_table(OTHERS):
        text, values = fill_shape(draw, shape)
        yield shape, values[-1], text


def _named_secrets(draw: random.Random) -> Iterator[Case]:
    """Yield secrets that are recognised by the name of their variable or header."""
    for name in NAMES:
        for form in split_table(NAMED):
            value = fill_shape(draw, draw.choice(["{w}", "a1B{r17}", "{h40}", "abcxyz{d3}q{d2}"]))[0]
            yield name, value, form.replace("@", name).replace("%", value)
    for header in split_table(HEADERS):
        for form in split_table(HEADER_CONTEXTS):
            value = fill_shape(draw, draw.choice(["a1B{s37}", "a1B{b40}", "{h64}"]))[0]
            name, value_shape = header.split(": ", 1)
            yield header, value, form.replace("@", name).replace("%", value_shape.replace("%", value))


def _logins_and_keys(draw: random.Random) -> Iterator[Case]:
    """Yield passwords in URLs, and lines of PEM private keys."""
    for form in split_table(LOGINS):
        for host in (
            "db.acme.org",
            "10.0.0.5",
            "redis",
            "localhost:6379",
            "[2001:db8::1]:5432",
            "proxy.corp:3128",
        ):
            value = fill_shape(draw, "{w}")[0]
            yield "login", value, form.replace("%", f"admin:{value}@{host}")
    for kind in KEYS.split("|"):
        for join in JOINS:
            for end in ([f"-----END {kind}-----"], []):
                lines = [fill_shape(draw, "{b64}")[0] for _ in range(5)]
                yield kind, lines[2], f'key = "{join.join([f"-----BEGIN {kind}-----", *lines, *end])}"\n'


def persons() -> Iterator[Case]:
    """Yield names, addresses and host names in every context."""
    forms = [(shape, around) for shape in split_table(PERSONS) for around in split_table(AROUND)]
    for shape, around in forms + [(shape, "%") for shape in split_table(PERSONS_IN_CONTEXT)]:
        for value in re.findall(r"\{([^{}]+)\}", shape):
            yield shape, value, around.replace("%", re.sub(r"[{}]", "", shape), 1)
