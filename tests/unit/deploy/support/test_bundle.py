"""A support bundle has no secret and no prompt in it, wherever they were planted."""

from __future__ import annotations

import io
import json
import logging
import tarfile

import pytest
from click.testing import CliRunner

from baton.cli.app import cli
from baton.deploy import machine_facts, state
from baton.deploy.log_files import LogFile
from baton.deploy.machine_facts import MachineFacts
from baton.deploy.support.bundle import gather
from baton.deploy.support.redact import REMOVED, Redactor
from baton.engine.simulated import SimulatedEngine
from baton.gateway.directory import FixedDirectory
from baton.observe.logs import JsonFormatter, TextFormatter
from baton.spec.schema import BatonBlock, Disaggregate
from tests.unit.gateway.fakes import serving

# Every secret and every prompt has one of these in it, so one search finds whatever leaked.
MARK = "Zq7Leak"
PROMPT = f"My diagnosis {MARK} is confidential, call 555-{MARK}"
SECRETS = {
    "hugging face": f"hf_{MARK}AbCdEfGhIjKlMnOpQr",
    "openai": f"sk-proj-{MARK}AbCdEfGh12345678",
    "aws id": f"AKIA{MARK.upper()}9ABCDEF123"[:20],
    "github": f"ghp_{MARK}AbCdEfGhIjKlMnOpQrSt",
    "jwt": f"eyJ{MARK}AbCd.eyJzdWIi{MARK}.c2ln{MARK}",
    "plain": f"{MARK}-correct-horse-battery",
}
PEM = f"-----BEGIN RSA PRIVATE KEY-----\n{MARK}AAAA\n{MARK}BBBB\n-----END RSA PRIVATE KEY-----"

CONFIG = f"""
applications:
- name: qwen
  import_path: baton:build_pd_openai_app
  runtime_env: {{env_vars: {{HF_TOKEN: {SECRETS["hugging face"]}, VLLM_LOGGING_LEVEL: DEBUG,
                             MY_THING: {SECRETS["plain"]}, UCX_TLS: "tcp"}}}}
  args:
    prefill_config:
      model_loading_config: {{model_id: qwen3.5-9b,
        model_source: "https://bob:{SECRETS["plain"]}@models.example/x?token={SECRETS["plain"]}"}}
      engine_kwargs:
        api_key: {SECRETS["openai"]}
        hf_token: {SECRETS["hugging face"]}
        chat_template: "You are a bot. {PROMPT}"
        max_model_len: 4096
        override_generation_config: {{note: "Bearer {SECRETS["jwt"]}"}}
        tokenizer: "{SECRETS["github"]}"
    baton:
      auth: {{api_keys_env: TEST_KEYS}}
      overflow: {{base_url: "https://x.example/v1", api_key_env: TEST_PROVIDER}}
# system prompt: {PROMPT}
"""
DETAILS = (
    f"Request cmpl-r-0123456789ab-p0-0 details: prompt: '{PROMPT}', prompt_token_ids: [1, 2],"
    " prompt_embeds shape: None."
)
VLLM = [
    "DEBUG 11-30 07:10:26 [request_logger.py:56] " + DETAILS,
    "INFO 11-30 07:10:26 [nixl_utils.py:72] NIXL is available",
    f"(EngineCore pid=12) ERROR 11-30 07:10:26 [core.py:99] {PROMPT}",
    f"(EngineCore pid=12) INFO 11-30 07:10:26 [nixl_utils.py:72] {PROMPT}",
    f"INFO 11-30 07:10:26 [nowhere.py:1] {PROMPT}",
    f"INFO 11-30 07:10:26 [{MARK}.py:1] x",
    PROMPT,
    "Traceback (most recent call last):",
    f'  File "{json.__file__}", line 3, in {MARK}',
    f'  File "/tmp/{MARK}.py", line 3, in run',
    f"    raise ValueError({PROMPT!r})",
    f"ValueError: {PROMPT}",
    f"{MARK}Error: no",
    f"pydantic_core._pydantic_core.ValidationError: 1 error\n  input_value='{PROMPT}'",
    f'data: {{"choices":[{{"text":"{PROMPT}"}}]}}',
    f"Authorization: Bearer {SECRETS['openai']}",
    PEM,
]  # fmt: skip
RAY = [
    f"INFO 2026-11-30 07:09:51,100 controller 1 -- Deploying new app '{MARK}'.",
    f"INFO 2026-11-30 07:09:51,100 controller 1 -- {PROMPT}",
    f"ERROR 2026-11-30 07:09:51,100 {MARK} {MARK} {MARK} -- Request failed: {PROMPT}",
    f"[2026-11-30 07:09:39,143 I 26226 26226] (raylet) main.cc:283: {PROMPT}",
]


def batons_own(formatter: logging.Formatter) -> list[str]:
    """Lines as the gateway writes them, with what callers could get into them."""

    def line(logger, message, *args, **extra):
        record = logging.LogRecord(logger, logging.WARNING, "f", 1, message, args, None)
        vars(record).update(extra)
        return formatter.format(record)

    return [
        line("baton.gateway.journey", "%s leg failed", "prefill", request_id="r-1",
             engine="http://127.0.0.1:1", failure="server_error", detail=PROMPT),
        line("baton.gateway.journey", "%s leg failed", "prefill", request_id="r-1",
             detail=f"x failure={MARK} route={MARK}"),
        line("baton.gateway.access", "%s %s %d", "POST", "/v1/completions", 200, key="ann",
             request_id="r-2", outcome="ok", ttft_s=0.25),
        line("baton.gateway.access", "%s %s %d", "POST", f"/{MARK}", 404),
        line("baton.gateway.auth", "the new keys do not hold; the old ones stay in use: %s",
             f"{PROMPT} route={MARK}", keys=3),
        line("baton.gateway", PROMPT, request_id="r-3"),
        line(f"baton.{MARK.lower()}", "draining", limit_s=60.0),
        line("baton.engine.life", "lease was not renewed", reason=f"ValueError('{PROMPT}')"),
        line("baton.engine.life", "lease was not renewed", reason=f"a route={MARK}"),
    ]  # fmt: skip


@pytest.fixture(autouse=True)
def machine(monkeypatch):
    """Somebody's command line, with what it was told to say, holds a port."""
    facts = MachineFacts(python="3.11.7", ports={6379: f"pid 12 (curl -d {PROMPT} (x))"})
    monkeypatch.setattr(machine_facts, "look", lambda _packages: facts)


@pytest.fixture
def planted(tmp_path, monkeypatch):
    """A deployment that is full of secrets and prompts."""
    monkeypatch.setenv("BATON_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("TEST_KEYS", f"ann:{SECRETS['plain']}-ann")
    monkeypatch.setenv("TEST_PROVIDER", f"{SECRETS['plain']}-provider")
    monkeypatch.setenv("SOME_API_KEY", f"{MARK}-of-the-environment")
    logs = tmp_path / "ray" / "session_latest" / "logs"
    logs.mkdir(parents=True)
    actor = ":job_id:01\n:actor_name:ServeReplica:demo:{}\n"
    text, as_json = batons_own(TextFormatter()), batons_own(JsonFormatter())
    for name, head, lines in (
        ("worker-1-01-11.err", actor.format("Gateway"), [*text, *as_json]),
        ("worker-2-01-12.out", actor.format("Decode:tiny"), VLLM),
        ("worker-3-ff-13.err", ":actor_name:ServeController\n", RAY),
        ("raylet.out", "", [f"{PROMPT}", *RAY]),
    ):
        (logs / name).write_text(head + "\n".join(lines) + "\n")
    config = tmp_path / "app.yaml"
    config.write_text(CONFIG)
    deployment = state.Deployment(
        name="demo", marker="m" * 8, ray_address="a", ray_auth_token=f"{MARK}-ray-token",
        folder=str(tmp_path / "ray"), endpoint="http://127.0.0.1:9", apps=("a",), builder="baton",
        file=str(config), started_at=0.0,
    )  # fmt: skip
    state.save(deployment)
    return deployment


def unpack(raw: bytes) -> dict[str, str]:
    with tarfile.open(fileobj=io.BytesIO(raw)) as tar:
        return {
            entry.name.removeprefix("baton-support/"): tar.extractfile(entry).read().decode()
            for entry in tar.getmembers()
        }


def leaked(files: dict[str, str]) -> list[str]:
    found = []
    for name, text in files.items():
        found += [
            f"{name}: {line[:200]}"
            for line in text.splitlines()
            if MARK.lower() in line.lower() or "diagnosis" in line or "555-" in line
        ]
    return found


def test_nothing_that_was_planted_comes_through(planted, tmp_path):
    """Config, environment, state and logs of gateway, engines and Ray; the file is private."""
    target = tmp_path / "b.tar.gz"
    done = CliRunner().invoke(cli, ["support-bundle", "-o", str(target)])
    assert done.exit_code == 0, done.output
    assert target.stat().st_mode & 0o077 == 0
    files = unpack(target.read_bytes())
    assert leaked({**files, "names": "\n".join(files), "output": done.output}) == []
    assert {"MANIFEST.md", "versions.json", "doctor.json", "config.yaml", "deployment.json"} <= set(
        files
    )


def test_what_helps_is_still_there(planted):
    """A bundle of nothing would be safe as well."""
    files = unpack(bundle_of(planted).pack())
    config = files["config.yaml"]
    assert "max_model_len: 4096" in config
    assert "VLLM_LOGGING_LEVEL: DEBUG" in config
    assert f"https://{REMOVED}@models.example" in config
    assert "api_keys_env: TEST_KEYS" in config
    gateway = files["logs/gateway-11.err"]
    assert "pid 12" in files["doctor.json"]
    assert (
        "prefill leg failed request_id=r-1 engine=http://127.0.0.1:1 failure=server_error"
        in gateway
    )
    assert "POST /v1/completions 200 key=ann request_id=r-2 outcome=ok ttft_s=0.25" in gateway
    assert '"message": "draining"' in gateway
    engine = files["logs/decode-12.out"]
    assert "[nixl_utils.py:72] NIXL is available" in engine
    assert "Request cmpl-r-0123456789ab-p0-0 details: prompt: …" in engine
    assert f"File {json.__file__}, line 3" in engine
    assert "ValueError: …" in engine
    assert "(raylet) main.cc:283: …" in files["logs/ray-raylet.out"]
    assert "Deploying new app '…'." in files["logs/serve-13.err"]


def bundle_of(deployment, **more):
    from pathlib import Path

    from baton.deploy.log_files import files_of

    about = {
        "deployment": deployment, "config": Path(deployment.file), "url": None,
        "logs": files_of(deployment), "api_key": None, **more,
    }  # fmt: skip
    return gather(**about)


def test_the_manifest_says_what_is_there_and_what_is_not(planted):
    """And how many lines were left out of each log."""
    files = unpack(bundle_of(planted).pack())
    manifest = files["MANIFEST.md"]
    for name in files:
        assert name == "MANIFEST.md" or f"| {name} |" in manifest
    assert "lines left out" in manifest
    assert "gateway/: no endpoint" in manifest


async def test_prompts_that_were_served_are_in_no_timeline_and_no_metric(tmp_path, monkeypatch):
    """From a real gateway: streamed, whole, refused, and with the prompt in odd places."""
    import asyncio

    import aiohttp

    monkeypatch.delenv("BATON_STATE_DIR", raising=False)
    settings = BatonBlock(disaggregate=Disaggregate(mode="always"))
    async with (
        SimulatedEngine(role="prefill", engine_id="p", secret="engine-secret") as p,
        SimulatedEngine(role="decode", engine_id="d", secret="engine-secret") as d,
        serving(FixedDirectory([p.url], [d.url], "engine-secret", interval_s=30.0), settings) as (
            _,
            url,
        ),
        aiohttp.ClientSession() as session,
    ):
        headers = {"x-request-id": PROMPT, "authorization": f"Bearer {SECRETS['plain']}"}
        for body in (
            {"prompt": PROMPT * 5, "max_tokens": 3},
            {"prompt": PROMPT * 5, "max_tokens": 3, "stream": True},
            {"prompt": PROMPT, "model": PROMPT},
            {"prompt": PROMPT, "max_tokens": PROMPT},
            {"prompt": PROMPT, "stream": PROMPT},
        ):
            await (await session.post(f"{url}/v1/completions", json=body, headers=headers)).read()
        await (await session.post(f"{url}/{MARK}/{PROMPT}")).read()
        bundle = await asyncio.to_thread(
            gather, deployment=None, config=None, url=url, logs=[], api_key=None
        )
    files = unpack(bundle.pack())
    assert leaked(files) == []
    assert not any("engine-secret" in text for text in files.values())
    assert len(json.loads(files["gateway/requests.json"])) >= 2
    assert "baton_requests_total" in files["gateway/metrics.txt"]
    assert "vllm:num_requests_running" in files["gateway/engines-metrics.txt"]
    engines = json.loads(files["gateway/engines.json"])["engines"]
    assert {engine["role"] for engine in engines} == {"prefill", "decode"}


def test_a_file_with_a_known_secret_in_it_is_left_out():
    """The last look, whatever the parts before it missed."""
    from baton.deploy.support.bundle import Bundle

    bundle = Bundle(Redactor.knowing(["hunter22"]))
    bundle.add("x", "there is hunter22", "note")
    assert bundle.files == {}
    assert "secret" in bundle.missing["x"]


def test_a_config_that_is_no_yaml_is_left_out(planted, tmp_path):
    """Its text may hold anything."""
    broken = tmp_path / "broken.yaml"
    broken.write_text(f"a: [1\n{PROMPT}")
    bundle = bundle_of(planted, config=broken)
    assert "config.yaml" not in bundle.files
    assert leaked(unpack(bundle.pack())) == []


BARE = ("{}", "x {} y", "--api-key {}")
NAMED = (
    "Authorization: Bearer {}", '{{"Authorization": "Bearer {}"}}', "api_key={}",
    "'api-key': '{}'", "HF_TOKEN={} next", "password: {}", "https://user:{}@host/x",
    "postgres://u:{}@h", "?access_token={}&x=1", "X-Api-Key: {}", "MY_SECRET_KEY='{}'",
    "Proxy-Authorization: Basic {}", "cookie: sid={}",
)  # fmt: skip


@pytest.mark.parametrize("kind", SECRETS)
def test_secrets_are_known_by_look(kind):
    """In text of any kind; a plain password only where something says that it is one."""
    for shape in NAMED if kind == "plain" else (*BARE, *NAMED):
        text = Redactor().text(shape.format(SECRETS[kind]))
        assert MARK.lower() not in text.lower(), text


def test_known_values_go_wherever_they_are():
    """Also where nothing says what they are."""
    assert Redactor.knowing(["swordfish1", "swordfish"]).text("a swordfish1b") == f"a {REMOVED}b"


def test_a_key_of_several_lines_goes_whole():
    """And one whose end was cut off."""
    assert MARK not in Redactor().text(f"a\n{PEM}\nb")
    assert MARK not in Redactor().text(PEM[:60])


def test_a_log_of_nothing_known_is_left_out(tmp_path):
    """And said to be."""
    path = tmp_path / "x.log"
    path.write_text(f"{PROMPT}\n" * 3)
    bundle = gather(
        deployment=None, config=None, url=None, logs=[LogFile(path, "x")], api_key=None, environ={}
    )
    assert "logs/x.log" not in bundle.files
    assert "3 lines" in bundle.missing["logs/x.log"]
