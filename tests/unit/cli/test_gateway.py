"""`baton gateway` as a person starts it: refusals in one line, a clean end."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys

import pytest
from click.testing import CliRunner

from baton.cli.gateway import command
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


def test_a_bad_url_is_one_line():
    """With how to write it."""
    error = CliRunner().invoke(command, ["--decode", "nonsense"]).exception
    assert isinstance(error, ConfigRefused)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("baton: {recovery: {prefil_timeout_s: 5}}", "baton.recovery.prefil_timeout_s"),
        ("a: [", "is not YAML"),
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
