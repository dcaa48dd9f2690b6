"""What a file says of who can reach its endpoint."""

from __future__ import annotations

import pytest

from baton.spec.check import examine
from baton.spec.load import load_text
from tests.unit.spec.files import BASE

AUTH = "      auth: {api_keys_env: BATON_API_KEYS}\n"


def _rules(text):
    report = examine(load_text(text, "app.yaml"))
    return {fault.rule_id: fault for fault in report.faults}


@pytest.mark.parametrize(
    ("host", "auth", "found"),
    [
        ("0.0.0.0", "", True),
        ("10.1.2.3", "      auth: {}\n", True),
        ("127.0.0.1", "", False),
        ("0.0.0.0", AUTH, False),
        ("0.0.0.0", "      auth: {api_keys_file: /etc/keys.yaml}\n", False),
        ("0.0.0.0", "      auth: {allow_anonymous: true}\n", False),
    ],
)
def test_an_address_that_others_can_reach_wants_a_key_or_a_word(host, auth, found):
    """With the place of the host; a warning, because `serve run` elsewhere may be guarded."""
    assert AUTH in BASE
    rules = _rules(f"http_options: {{host: {host}}}\n" + BASE.replace(AUTH, auth))
    assert ("BTN-195" in rules) is found
    if found:
        assert rules["BTN-195"].severity == "warning"
        assert rules["BTN-195"].place.line == 1


def test_certificates_that_haproxy_does_not_read_are_named():
    """Each of them; empty ones are none."""
    options = "http_options: {ssl_certfile: /a, ssl_keyfile: null}\n"
    rules = _rules(options + BASE)
    assert "ssl_certfile" in rules["BTN-196"].message
    assert "BTN-196" not in _rules(BASE)
