"""`baton gateway` as a person starts it: refusals in one line, a clean end."""

from __future__ import annotations

import os
import signal
import socket
import ssl
import subprocess
import sys
import time

import httpx
import psutil
import pytest
from click.testing import CliRunner

from baton.cli.gateway import _settings, command
from baton.errors import ConfigRefused, PortTaken

ENGINES = ["--prefill", "http://127.0.0.1:1", "--decode", "http://127.0.0.1:2"]


def _run(*args, **env):
    result = CliRunner(env=env).invoke(command, [*ENGINES, *args])
    return result.exception


def test_a_port_that_is_taken_is_named_with_its_owner():
    """Pid and command, before anything starts."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        error = _run("--port", str(port))
    assert isinstance(error, PortTaken)
    assert f"port {port} is taken by pid {os.getpid()}" in error.fact


def test_an_address_that_others_reach_needs_keys_or_a_clear_word():
    """Refused by name of the option."""
    error = _run("--host", "0.0.0.0")
    assert isinstance(error, ConfigRefused)
    assert "--insecure-no-auth" in error.cure


def test_an_open_address_starts_when_the_file_says_that_it_is_meant_so(tmp_path):
    """It gets as far as the port, which is taken."""
    file = tmp_path / "app.yaml"
    file.write_text("baton: {auth: {allow_anonymous: true}}")
    with socket.socket() as other:
        other.bind(("0.0.0.0", 0))
        other.listen()
        port = str(other.getsockname()[1])
        error = _run("--host", "0.0.0.0", "--port", port, "--config", str(file))
    assert isinstance(error, PortTaken)


def test_the_console_is_off_and_is_switched_on_by_flag_variable_or_file(tmp_path, monkeypatch):
    """And where it is is said once the gateway listens."""
    file = tmp_path / "app.yaml"
    file.write_text("baton: {console: {enabled: true}}")
    seen = []

    def serve(app, listener, settings, tls, ready):
        seen.append(app.settings.console.enabled)
        ready()

    monkeypatch.setattr("baton.cli.gateway._serve", serve)
    runs = (
        ([], {}),
        (["--console"], {}),
        ([], {"BATON_CONSOLE": "1"}),
        (["--config", str(file)], {}),
    )
    for args, env in runs:
        command_line = [*ENGINES, "--port", "0", "--route-prefix", "/qwen/", *args]
        said = CliRunner(env=env).invoke(command, command_line, catch_exceptions=False).stderr
        assert ("its console is at http://127.0.0.1:" in said) is seen[-1]
        assert ("/qwen/console" in said) is seen[-1]
    assert seen == [False, True, True, True]


def _certificate(folder, name="tls"):
    """A self-signed certificate for 127.0.0.1 and its key."""
    cert, key = folder / f"{name}.crt", folder / f"{name}.key"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
         "-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1",
         "-keyout", str(key), "-out", str(cert)],
        check=True, capture_output=True,
    )  # fmt: skip
    return cert, key


def test_certificates_that_do_not_hold_are_refused_before_anything_starts(tmp_path):
    """Missing, half, swapped, of another key, with a password."""
    cert, key = _certificate(tmp_path)
    other = _certificate(tmp_path, "other")[1]
    locked = tmp_path / "locked.key"
    subprocess.run(
        ["openssl", "rsa", "-aes256", "-passout", "pass:x", "-in", str(key), "-out", str(locked)],
        check=True, capture_output=True,
    )  # fmt: skip
    for pair in ((cert, None), (None, key), (cert, other), (key, cert), (cert, locked),
                 (tmp_path / "none", key)):  # fmt: skip
        options = [
            word
            for name, path in zip(("--tls-cert", "--tls-key"), pair, strict=True)
            if path is not None
            for word in (name, str(path))
        ]
        assert isinstance(_run(*options), ConfigRefused), pair


def _served_cn(port):
    """The common name of the certificate that a new connection gets."""
    pem = ssl.get_server_certificate(("127.0.0.1", port), timeout=10)
    text = subprocess.run(
        ["openssl", "x509", "-noout", "-subject"], input=pem, text=True, capture_output=True,
        check=True,
    ).stdout  # fmt: skip
    return text.strip().rpartition("=")[2].strip()


def test_https_and_sighup_reads_keys_and_certificate_again(tmp_path):
    """Without a restart; a broken pair keeps the old one."""
    cert, key = _certificate(tmp_path)
    keys = tmp_path / "keys.yaml"
    keys.write_text("keys: [{name: ann, key: first}]")
    config = tmp_path / "app.yaml"
    config.write_text(f"baton: {{auth: {{api_keys_file: {keys}}}}}")
    process = subprocess.Popen(
        [sys.executable, "-m", "baton.cli", "gateway", *ENGINES, "--port", "0",
         "--config", str(config), "--tls-cert", str(cert), "--tls-key", str(key)],
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip

    def wait_for(words):
        for line in process.stderr:
            if words in line:
                return line
        raise AssertionError(f"the gateway ended without saying {words!r}")

    try:
        port = int(wait_for("gateway listens on https://").rsplit(":", 1)[1])
        trusted = ssl.create_default_context(cafile=str(cert))
        with httpx.Client(base_url=f"https://127.0.0.1:{port}", verify=trusted) as client:
            for token, status in (("first", 200), ("second", 401)):
                answer = client.get("/baton/engines", headers={"authorization": f"Bearer {token}"})
                assert answer.status_code == status
        keys.write_text("keys: [{name: ann, key: second}]")
        new_cert, new_key = _certificate(tmp_path, "renewed")
        new_cert.replace(cert)
        process.send_signal(signal.SIGHUP)  # the key is still the old one
        wait_for("the old one stays in use")
        assert _served_cn(port) == "tls"
        new_key.replace(key)
        process.send_signal(signal.SIGHUP)
        wait_for("the certificate was read anew")
        wait_for("keys were read anew")
        assert _served_cn(port) == "renewed"
        trusted = ssl.create_default_context(cafile=str(cert))
        with httpx.Client(base_url=f"https://127.0.0.1:{port}", verify=trusted) as client:
            answer = client.get("/baton/engines", headers={"authorization": "Bearer second"})
            assert answer.status_code == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.stderr.close()


def test_a_bad_url_is_one_line():
    """With how to write it."""
    error = CliRunner().invoke(command, ["--decode", "nonsense"]).exception
    assert isinstance(error, ConfigRefused)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "baton: {recovery: {prefil_timeout_s: 5}}",
            "`prefil_timeout_s` is not a key of `baton.recovery`",
        ),
        ("a: [", "not YAML"),
        ("a: 1", "no `baton:` block"),
    ],
)
def test_a_bad_config_is_refused_with_its_place(tmp_path, text, words):
    """The file and the key."""
    file = tmp_path / "app.yaml"
    file.write_text(text)
    error = _run("--config", str(file))
    assert isinstance(error, ConfigRefused)
    assert words in str(error)
    assert str(file) in error.place


INNER = """\
applications:
- name: q
  import_path: baton:build_pd_openai_app
  args: {prefill_config: {}, decode_config: {}, baton: {recovery: {max_attempts: 7}}}
"""


@pytest.mark.parametrize(
    "text",
    [
        "baton: {recovery: {max_attempts: 7}}",
        INNER,
        "apiVersion: ray.io/v1\nkind: RayService\nmetadata: {name: q}\nspec:\n  serveConfigV2: |\n"
        + "".join(f"    {line}" for line in INNER.splitlines(keepends=True)),
    ],
)
def test_the_block_is_found_alone_in_a_serve_config_and_in_a_manifest(tmp_path, text):
    """A FILE is a FILE everywhere."""
    file = tmp_path / "app.yaml"
    file.write_text(text)
    assert _settings(file).recovery.max_attempts == 7


def test_a_wrong_key_in_a_manifest_has_its_line_there(tmp_path):
    """And did you mean."""
    text = INNER.replace("max_attempts", "max_atempts")
    file = tmp_path / "rayservice.yaml"
    file.write_text(
        "kind: RayService\nspec:\n  serveConfigV2: |\n"
        + "".join(f"    {line}" for line in text.splitlines(keepends=True))
    )
    error = _run("--config", str(file))
    assert isinstance(error, ConfigRefused)
    assert error.place.endswith("rayservice.yaml:7:72")
    assert error.cure == "did you mean `max_attempts`?"


def test_two_blocks_are_not_chosen_from(tmp_path):
    """Both places are named."""
    file = tmp_path / "app.yaml"
    file.write_text("baton: {}\n" + INNER)
    assert "has 2 `baton:` blocks" in str(_run("--config", str(file)))


def test_a_missing_secret_is_refused():
    """Never an empty one."""
    assert isinstance(_run("--engine-secret-env", "NO_SUCH"), ConfigRefused)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_gateway_says_where_it_listens_and_ends_with_status_0(number):
    """Although no engine runs yet: it waits for them."""
    process = subprocess.Popen(
        [sys.executable, "-m", "baton.cli", "gateway", *ENGINES, "--port", "0"],
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        for line in process.stderr:
            if "gateway listens on http://127.0.0.1:" in line:
                break
        process.send_signal(number)
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.stderr.close()


def test_several_processes_share_a_port_and_one_that_dies_is_replaced():
    """New connections go to all of them; SIGTERM ends them all, with status 0."""
    process = subprocess.Popen(
        [sys.executable, "-m", "baton.cli", "gateway", *ENGINES, "--port", "0", "--workers", "2"],
        stderr=subprocess.PIPE,
        text=True,
    )
    parent = psutil.Process(process.pid)
    try:
        port = next(
            int(line.rsplit(":", 1)[1]) for line in process.stderr if "gateway listens on" in line
        )
        children = parent.children()
        assert len(children) == 2

        def takers() -> set[int]:
            """Who has connections; sixty of them all go to one of two once in 10^17 times."""
            opened = [socket.create_connection(("127.0.0.1", port)) for _ in range(60)]
            try:
                deadline = time.monotonic() + 20
                while time.monotonic() < deadline:
                    held = {
                        child.pid: sum(c.status == "ESTABLISHED" for c in child.net_connections())
                        for child in parent.children()
                    }
                    if sum(held.values()) == 60:
                        break
                    time.sleep(0.02)
                return {pid for pid, count in held.items() if count}
            finally:
                for one in opened:
                    one.close()

        assert takers() == {child.pid for child in children}
        children[0].kill()
        next(line for line in process.stderr if "another takes its place" in line)
        for _ in range(500):
            if len(now := parent.children()) == 2 and takers() == {child.pid for child in now}:
                break
            time.sleep(0.02)
        else:
            pytest.fail("nobody took the place")
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
        assert not any(child.is_running() for child in now)
    finally:
        process.kill()
        process.stderr.close()


def test_a_port_that_is_taken_is_taken_for_several_processes_as_well():
    """A second gateway never gets half of the first one's connections."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
        assert isinstance(_run("--port", port, "--workers", "2"), PortTaken)
