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
    "xapp-1-A{u10}-{d13}-{h64}", "whsec_{r32}", "lsv2_pt_{h32}_{h10}", "sq0atp-{s22}", "shpat_{h32}",
    "hvb.{s90}", "glrt-{s20}", "ATATT3xFfGF0{s80}",
    "dckr_pat_{s27}", "ak-{r22}", "as-{r22}",
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
echo {w} | docker login --password-stdin|huggingface-cli login --token {w}|openssl -passin pass:{w}
IDENTIFIED BY '{w}'
Server=x;User Id=sa;Pwd={w};|Data Source=x;Password={w}|jdbc:mysql://h/db?user=u&password={w}|ldap_bind_pw={w}
trainer.logger.wandb.key={h40}|requirepass {w}|ray start --redis-password={w}|api_key=["{w}"]|password = b'{w}'
os.environ.setdefault("HF_TOKEN", "{w}")|+ export WANDB_API_KEY={h40}|declare -x HF_TOKEN="{w}"
<password>{w}</password>
Enter password: {w}|Using token {w}|Bearer {w}|Basic {b32}|?access_token={w}|%26token%3D{w}%26
&sig={w}|&signature={h40}
http://localhost:8888/?token={h40}|wandb: Appending key for api.wandb.ai: {h40}|{"username":"bob","key":"{h40}"}
"""
# Passwords among the arguments of programs.
COMMANDS = r"""
curl -uada:{w} https://x|curl -u ada:{w} https://x|curl -su ada:{w} https://x|curl -k -u 'ada:{w}' https://x
curl --user=ada:{w} https://x|curl --user "ada:{w}" https://x|curl https://x -u ada:{w}
curl -sSL -uada:{w} -o f https://x|curl --proxy-user ada:{w} https://x|curl -U ada:{w} -x proxy:3128 https://x
curl --oauth2-bearer {w} https://x|curl -d 'grant_type=password&password={w}' https://x
curl -d '{"password":"{w}"}' https://x|curl -F token={w} https://x|curl --pass {w} --cert c.pem https://x
curl --cert c.pem:{w} https://x|curl -H "Authorization: Bearer {w}" https://x
curl -HAuthorization:Bearer\ {w} https://x|wget --user=ada --password={w} https://x
wget --header='X-Auth-Token: {w}' https://x|docker login -u ada -p {w}|docker login -uada -p{w} reg.io
docker login --username ada --password {w} reg.io|docker login --password={w}|podman login -p {w} quay.io
podman login -u ada -p '{w}' quay.io|buildah login -p {w} quay.io|skopeo login -u ada -p {w} quay.io
skopeo copy --src-creds ada:{w} docker://a docker://b|helm registry login -u ada -p {w} r.io
nerdctl login -u ada -p {w}|oras login -u ada -p {w} r.io|singularity remote login -p {w}
apptainer pull --docker-password {w} docker://x|docker run -e HF_TOKEN={w} image|docker run -eHF_TOKEN={w} image
docker run --env=HF_TOKEN={w} image|docker build --build-arg TOKEN={w} .|mysql -uroot -p{w} db
mysql -u root -p'{w}' db|mysql --password={w}|mysqldump -h h -p{w} db|mariadb -u root -p{w}|mysqladmin -p{w} ping
PGPASSWORD={w} psql -h h|PGPASSWORD='{w}' pg_dump|psql "host=h user=ada password={w}"|psql postgresql://ada:{w}@h/db
MYSQL_PWD={w} mysql|redis-cli -a {w} ping|redis-cli -h h -a '{w}'|redis-cli --pass {w}|redis-cli -u redis://:{w}@h
REDISCLI_AUTH={w} redis-cli|sshpass -p {w} ssh h|sshpass -p{w} ssh h|sshpass -p '{w}' scp a h:
SSHPASS={w} sshpass -e ssh h|smbclient //h/s -U ada%{w}|mount -t cifs -o user=ada,password={w} //h/s /m
mount.cifs //h/s /m -o username=ada,pass={w}|lftp -u ada,{w} ftp://h|ftp://ada:{w}@h/f|rclone --sftp-pass {w} ls r:
restic --password-command 'echo {w}' snapshots|ansible-vault view --vault-password {w}|7z x -p{w} a.7z
unzip -P {w} a.zip|zip -P {w} a.zip f|gpg --passphrase {w} -d f|gpg --batch --passphrase={w} f
openssl enc -pass pass:{w}|openssl rsa -passin pass:{w}|ssh-keygen -N {w}|ssh-keygen -N '{w}' -f k
keytool -storepass {w} -list|keytool -keypass {w}|az login -u ada -p {w}
az login --service-principal -u a -p {w} --tenant t|az storage blob list --account-key {w}|az acr login --password {w}
gcloud auth --access-token {w}|ldapsearch -D cn=a -w {w}|ldapsearch -w{w}|mongosh -u a -p {w}|mongosh --password {w}
mongodump -p={w}|kubectl --token={w} get pods|kubectl --token {w} get pods
kubectl create secret generic s --from-literal=password={w}|kubectl config set-credentials a --token={w}
oc login --token={w}|oc login -u a -p {w}|huggingface-cli login --token={w}|hf auth login --token {w}
wandb login --relogin {h40}|comet login --api-key {w}|ray start --redis-password {w}|ray start --redis-password '{w}'
vllm serve m --api-key {w}|vllm serve m --api-key={w}|trl vllm-serve --api_key {w}
aws configure set aws_secret_access_key {w}|git -c http.extraHeader='Authorization: Basic {b32}' clone u
npm config set //r/:_authToken {w}|npm config set //r/:_authToken={w}
pip install --index-url https://ada:{w}@h/simple p|twine upload -u ada -p {w} d/*|poetry publish -u a -p {w}
poetry config pypi-token.pypi {w}|uv publish --token {w}|uv publish -t {w}|conda config --set x https://h/t/{r24}/c
modal token set --token-secret {w}|http -a ada:{w} h|http --auth ada:{w} h|https -a ada:{w} h|https --auth=ada:{w} h
xh -a ada:{w} h|http h X-Api-Key:{w}|echo '{w}' | sudo -S ls|echo {w} | docker login -u a --password-stdin
echo "{w}" | podman login --password-stdin|sudo -S ls <<< {w}|docker login --password-stdin <<< '{w}'
printf '%s' '{w}' | docker login --password-stdin|sqlcmd -U sa -P {w}|bcp t out f -U sa -P{w}
snowsql -a a -u u --password {w}|vault login {w}|vault login token={w}|vault kv put secret/x password={w}
s3cmd --secret_key={w} ls|gh auth login --with-token <<< {w}|tailscale up --authkey {w}|ngrok authtoken {w}
ngrok config add-authtoken {w}|slack --webhook-token {w}|chpasswd <<< 'ada:{w}'|echo 'ada:{w}' | chpasswd
htpasswd -b f ada {w}|htpasswd -nbB ada {w}|useradd -p '{w}' ada|nmcli dev wifi connect x password {w}
wpa_passphrase ssid {w}
"""
# Argument lists as shells, JSON, YAML and Python show them.
ARGUMENT_LISTS = r"""
['--token', '{w}']|["--token", "{w}"]|["--token","{w}"]|('--api-key', '{w}')|['curl', '-u', 'ada:{w}', 'https://x']
["docker", "login", "-p", "{w}"]|['docker', 'login', '-u', 'ada', '-p', '{w}']|["mysql", "-u", "root", "-p{w}"]
['mysql', '-p{w}']|["curl", "-uada:{w}"]|['curl', '--user', 'ada:{w}']|["redis-cli", "-a", "{w}"]
['sshpass', '-p', '{w}', 'ssh', 'h']|['--password={w}']|["--password={w}"]|['env', 'HF_TOKEN={w}']
["-e", "PGPASSWORD={w}"]|argv=['x', '--hf-token', '{w}', '--lr', '1']|\"--token\", \"{w}\"
{"args": ["--token", "{w}"]}|args: [--token, {w}]|args: ["--token", {w}]|command: [x, --api-key={w}]|- --token#- {w}
- "--token"#- "{w}"|"args": [#  "--token",#  "{w}"#]|--token \#  {w} \|--token \#    '{w}'
Popen(['x', '--token', '{w}'])|CMD ["x", "--password", "{w}"]|RUN x --password {w}|ENV HF_TOKEN {w}|ENV HF_TOKEN={w}
ARG TOKEN={w}|args=Namespace(token='{w}')|Args(api_key={w}, n=1)|-token {w}|-token={w}|-password {w}|-pass {w}
--pass {w}|--pass={w}|--pwd {w}|--pw {w}|--auth {w}|--secret {w}|--apikey {w}|--key {h32}|/p:Password={w}
/password:{w}|-Dpassword={w}|-Dhttp.proxyPassword={w}|--set db.password={w}|--set-string auth.token={w}|+hf_token={w}
++trainer.api_key={w}|trainer.api_key="{w}"|'trainer.api_key={w}'
"""
# Files: netrc, INI, YAML, JSON, XML, environment, and calls in code.
FILES = r"""
machine h login ada password {w}|machine h#login ada#password {w}|machine h login ada password "{w}"
default login ada password {w}|machine h password {w} login ada|machine h account x password {w}
machine h	login ada	password	{w}|//r.io/:_password={w}|//r.io/:_authToken={w}|_auth={w}
always-auth=true#_auth = {w}
"auths": {"r.io": {"auth": "{b32}"}}|password: {w}|password : {w}|password:{w}|password = {w}|password={w}
password: "{w}"|password: '{w}'|"password": "{w}"|'password': '{w}'|"password" : "{w}"|"password":"{w}"
password: !secret {w}|password: !!str {w}|password: &p {w}|password: >-#  {w}|password: '''{w}'''|password: r"{w}"
password: u'{w}'|password = f'{w}'|passwords: ["{w}"]|passwords: [a, {w}]|api_keys: {"a": "{w}"}
api_keys = ["{w}", "{w}"]|secrets: {a: {w}}|credentials: {user: a, secret: {w}}|[credentials]#key = {h32}
token = {w} ; comment|token={w}# n=1|export TOKEN="{w}";|set TOKEN={w}|$env:TOKEN="{w}"|$env:TOKEN = '{w}'
TOKEN={w} python x|env TOKEN={w} python x|TOKEN=$'{w}'|setenv TOKEN {w}|set -x TOKEN {w}|set -gx HF_TOKEN {w}
declare -x TOKEN="{w}"|<token>{w}</token>|<token type="x">{w}</token>|<entry key="password">{w}</entry>
<add key="Password" value="{w}"/>|<string name="token">{w}</string>|password => "{w}"|:password => '{w}'
password := "{w}"|"password":null,"token":"{w}"|db_passwd={w}|dbPassword={w}|DB_PASS={w}|DBPASS={w}|db.pass={w}
db_pw={w}|db_pwd={w}|PASSWD={w}|passcode={w}|userpass={w}|authkey={w}|auth_key={w}|authToken={w}|bearerToken={w}
sessionToken={w}|idToken={w}|jwt={w}|apitoken={w}|accessKey={w}|access_key_secret={w}|secretKey={w}
SecretAccessKey: {w}|ssh_key={w}|privateKey: {w}|private_key = {w}|license_key={w}|service_key={w}|admin_key={w}
app_key={w}|client_key={w}|webhook_key={w}|hmac_key={w}|cred={w}|creds={w}|credentials={w}|auth={w}|basic_auth={w}
basic_auth=("ada", "{w}")|auth=('ada', '{w}')|HTTPBasicAuth('ada', '{w}')|requests.auth.HTTPBasicAuth("ada", "{w}")
login('ada', '{w}')|client.login("ada", "{w}")|login(token="{w}")|salt={w}|totp_secret={w}|Password:{w}|PASSWORD '{w}'
WITH PASSWORD '{w}'|IDENTIFIED BY "{w}"|password => {w}|password={d9}|"password": {d9}|password: {d9}|--password {d9}
PGPASSWORD={d9}
"""
# Headers, cookies and URLs in more quotings.
HEADERS_AND_URLS = r"""
Authorization: Basic {b32}|Authorization:Basic {b32}|authorization=Basic {b32}|'Authorization': 'Basic {b32}'
"authorization":"Bearer {w}"|Authorization: Token {w}|Authorization: Token token={w}|Authorization: Bearer  {w}
AUTHORIZATION: BEARER {w}|HTTP_AUTHORIZATION=Bearer {w}|('Authorization', 'Bearer {w}')|("authorization", "Token {w}")
[b"authorization", b"Bearer {w}"]|headers={'Authorization': f'Bearer {w}'}|\"Authorization\": \"Bearer {w}\"
"Authorization: Bearer {w}"|-H Authorization:\ Bearer\ {w}|--header=Authorization: Bearer {w}|X-Api-Key: {w}
x-api-key={w}|"X-Api-Key":"{w}"|X-API-KEY {w}|x-access-token: {w}|X-Auth-Key: {w}|X-Session-Token: {w}|X-Token: {w}
Cookie: a=b; session={w}|cookie: {w}|"Cookie": "sid={w}"|Set-Cookie: sid={w}; Path=/|set-cookie=[sid={w}]
cookies={'sid': '{w}'}|cookies: sid={w}|Cookie: _gh_sess={w}; logged_in=yes|document.cookie="sid={w}"|JSESSIONID={h32}
PHPSESSID={h32}|sessionid={h32}|csrftoken={w}|connect.sid={w}|https://ada:{w}@h/x|https://{w}@h/x|https://:{w}@h/x
https://h/x?token={w}|https://h/x?a=1&access_token={w}|https://h/x?api_key={w}&b=1|https://h/x?key={w}
https://h/x?apikey={w}|https://h/x?sig={b32}|https://h/x?auth={w}|https://h/x#access_token={w}|https://h/x?pwd={w}
https://h/x?pass={w}|https://h/x?password={w}|https://h/x?jwt={w}|https://h/x?secret={w}
https://h/x?X-Amz-Credential={r20}|git+https://ada:{w}@h/x|redis://:{w}@h:6379/0|amqp://a:{w}@h//
mongodb://a:{w}@h1,h2/d|socks5://a:{w}@h:1|wss://h/x?token={w}|postgresql://h/d?user=a&password={w}
https%3A%2F%2Fada%3A{w}%40h|%3Ftoken%3D{w}|\u0026token={w}|&amp;token={w}|\u0026password={w}
"""
# Labels and programs that a review found to leak; the last braces contain the secret.
REVIEWED = r'''
pw: {w}|pw={w}|credentials=bob:{w}|--litellm-key {w}|--wandb-key {w}|wandb-key={w}|wandb.key: {w}
htpasswd -b FILE bob {w}|htpasswd -bc /etc/f bob {w}|htpasswd -nb bob {w} && echo done
ipmitool -H h -U bob -P {w} power status
snmpget -v2c -c {w} h sysDescr|xfreerdp /v:h /u:bob /p:{w}|ldapmodify -D cn=a -w "{w}"|ldappasswd -w {w} x
gpg --passphrase "correct horse {w}"|passphrase: "correct horse {w}"|passphrase = 'correct horse {w}'
echo "correct horse {w}" \| docker login --password-stdin|ssh-keygen -N "correct horse {w}"
  api_key ......................... {w}|wandb_api_key ... {w}|password:              {w}|password         = {w}
db_password            {w}|│ db_password │ {w} │|\| db_password \| {w} \||api_key: str \| None = '{w}'
password: Optional[str] = "{w}"|password = """{w}"""|passwords:#  - {w}|passwords:#  - a1#  - {w}
password: ["abcd", "{w}"]|passwords: ['a]b', '{w}']|&quot;password&quot;: &quot;{w}&quot;
password: true-{w}|token=none-{w}
password=null-{w}|"password": "None-{w}"|\x1b[34mpassword\x1b[0m=\x1b[33m{w}\x1b[0m
'''
# Texts in which an unquoted password runs to the next blank or the end of the quotes; `%` is the password.
UNQUOTED = r"""
DB_PASSWORD=%|password: %|--password %|export PGPASSWORD=%|password = %|--password=%|passwd: %
REDIS_PASSWORD=% redis-cli
  db_password: %  ; comment|"DB_PASSWORD=%"|MYSQL_PWD=% mysql|docker run -e DB_PASSWORD=% image|pw: %|client_secret: %
\| password \| % \||password ........ %|SECRET_KEY=%|passphrase: %|mysql -u root -p%|password:        %
api_key=%|--token %
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
HOME=/root/{qzbob}
{qzbob}@{gpu-q17}:~$ ls
{qzbob}@{gpu-q17}: Permission denied (publickey).
Permission denied: {qzbob}@{gpu-q17}
connect to [{gpu-q17}]:29500|rank 3 on {gpu-q17}|node: {gpu-q17}|owner: {qzbob}
drwxr-xr-x 2 {qzbob} {qzbob} 4096 Nov 22 x
"""


def split_table(text: str) -> list[str]:
    r"""Split a table at `|` and line ends; `#` stands for a line end, `\|` for `|` in an entry."""
    forms = [
        form for row in text.strip("\n").splitlines() for form in re.split(r"(?<!\\)\|(?! )", row) if form
    ]
    forms = [form.replace("\\|", "|") for form in forms]
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


def unquoted_passwords(number: int) -> Iterator[Case]:
    """Yield random passwords of 16 printable characters, without blanks and quotes, in every unquoted form."""
    draw = random.Random(16)
    alphabet = [char for char in map(chr, range(33, 127)) if char not in "'\"`"]
    for _ in range(number):
        value = "".join(draw.choices(alphabet, k=16))
        for form in split_table(UNQUOTED):
            yield form, value, form.replace("%", value)


def _issued(draw: random.Random) -> Iterator[Case]:
    """Yield tokens that are recognised by their shape."""
    for shape in ISSUED:
        for form in split_table(PLAIN):
            value = fill_shape(draw, shape)[0]
            yield shape, value, form.replace("%", value)
    for shape in split_table(OTHERS + COMMANDS + ARGUMENT_LISTS + FILES + HEADERS_AND_URLS + REVIEWED):
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
