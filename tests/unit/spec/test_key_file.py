"""Keys as people write them: what is read, what is refused, and that no key stands in a message."""

from __future__ import annotations

import hashlib

import pytest

from baton.errors import ConfigRefused
from baton.spec.hosts import is_loopback
from baton.spec.key_file import MAX_KEYS, keys_of
from baton.spec.provider_url import sends_key_in_clear, url_fault
from baton.spec.schema import Auth

SHA = hashlib.sha256(b"secret-one").hexdigest()


def _file(tmp_path, text):
    path = tmp_path / "keys.yaml"
    path.write_text(text)
    return Auth(api_keys_file=str(path))


def test_a_file_gives_each_key_its_name_and_limits(tmp_path):
    """By hash or written out; what is left out is no limit."""
    auth = _file(
        tmp_path,
        f"keys:\n- {{name: ann, sha256: {SHA}, requests_per_min: 60, max_concurrency: 4}}\n"
        "- {name: bob, key: ' secret-two ', weight: 2}\n",
    )
    ann, bob = keys_of(auth, {})
    assert ann.digest == hashlib.sha256(b"secret-one").digest()
    assert bob.digest == hashlib.sha256(b"secret-two").digest()
    assert (ann.requests_per_min, ann.burst_size, ann.max_concurrency) == (60, 6, 4)
    assert (bob.requests_per_min, bob.max_concurrency, bob.weight) == (None, None, 2)
    assert "secret-two" not in repr(bob)


def test_a_key_of_digits_and_a_hash_that_reads_like_a_number_stay_text(tmp_path):
    """YAML would make an integer of one and a float of the other."""
    odd = "1e" + "0" * 62
    auth = _file(tmp_path, f"keys:\n- {{name: a, key: 0123}}\n- {{name: b, sha256: {odd}}}\n")
    a, b = keys_of(auth, {})
    assert a.digest == hashlib.sha256(b"0123").digest()
    assert b.digest == bytes.fromhex(odd)


def test_a_variable_and_a_file_can_be_used_together(tmp_path):
    """Each name and each key once."""
    auth = _file(tmp_path, f"keys:\n- {{name: ann, sha256: {SHA}}}\n")
    both = auth.model_copy(update={"api_keys_env": "K"})
    assert [key.name for key in keys_of(both, {"K": "bob:b, c"})] == ["bob", "key2", "ann"]
    for text in ("ann:other", "bob:secret-one"):
        with pytest.raises(ConfigRefused):
            keys_of(both, {"K": text})


@pytest.mark.parametrize("text", ["", " , ", "ann:", ":k", "ann:a,ann:b", "anonymous:x", "a b:c"])
def test_a_variable_that_makes_no_sense_is_refused(text):
    """An empty key would let everybody in."""
    with pytest.raises(ConfigRefused):
        keys_of(Auth(api_keys_env="K"), {"K": text})


WRONG = [
    "", "a: [", "- x", "keys: []", "keys: {}", "keys:\n- topsecret", "other: 1\nkeys: []",
    "keys:\n- {name: a}",
    "keys:\n- {name: a, key: topsecret, sha256: '" + SHA + "'}",
    "keys:\n- {name: a, key: ''}",
    "keys:\n- {name: a, sha256: topsecret}",
    "keys:\n- {name: a b, key: topsecret}",
    "keys:\n- {name: anonymous, key: topsecret}",
    "keys:\n- {name: a, key: topsecret, burst: 3}",
    "keys:\n- {name: a, key: topsecret, requests_per_min: 0}",
    "keys:\n- {name: a, key: topsecret, max_concurency: 1}",
    "keys:\n- {name: a, key: topsecret}\n- {name: a, key: other}",
    "keys:\n- {name: a, key: topsecret}\n- {name: b, key: topsecret}",
    "keys:\n- {name: a, key: topsecret\n- [",
    "keys:\n- {name: a, key: [topsecret]}",
]  # fmt: skip


@pytest.mark.parametrize("text", WRONG)
def test_a_file_that_does_not_hold_is_refused_with_its_place_and_without_keys(tmp_path, text):
    """Messages go to logs."""
    auth = _file(tmp_path, text)
    with pytest.raises(ConfigRefused) as caught:
        keys_of(auth, {})
    assert "keys.yaml" in caught.value.place
    told = f"{caught.value} {caught.value.cure} {caught.value.__cause__}"
    assert "topsecret" not in told


def test_a_missing_file_and_one_with_too_many_keys_are_refused(tmp_path):
    """Each name is a label in the metrics."""
    with pytest.raises(ConfigRefused, match="cannot be read"):
        keys_of(Auth(api_keys_file=str(tmp_path / "none")), {})
    many = "keys:\n" + "".join(f"- {{name: n{n}, key: k{n}}}\n" for n in range(MAX_KEYS + 1))
    with pytest.raises(ConfigRefused, match="more than"):
        keys_of(_file(tmp_path, many), {})


@pytest.mark.parametrize(
    ("host", "expected"),
    [("127.0.0.1", True), ("127.8.0.1", True), ("::1", True), ("[::1]", True), ("localhost", True),
     ("0.0.0.0", False), ("::", False), ("10.0.0.1", False), ("", False), ("127.example", False),
     ("my-host", False)],
)  # fmt: skip
def test_only_this_machines_own_addresses_are_loopback(host, expected):
    """A name that only begins like one is not."""
    assert is_loopback(host) is expected


@pytest.mark.parametrize(
    "url",
    ["", "provider", "ftp://x/v1", "https://", "https://u:p@x/v1", "https://x/v1?a=1",
     "https://x/v1/chat/completions", "https://x/v1/embeddings/", "http://x:99999/v1"],
)  # fmt: skip
def test_a_provider_url_that_cannot_be_called_says_why(url):
    """With what to write instead."""
    assert all(url_fault(url))


def test_a_good_provider_url_is_taken_and_a_key_in_clear_is_noticed():
    """On loopback nobody listens in."""
    assert url_fault("https://provider.example/v1/") is None
    assert sends_key_in_clear("http://provider.example/v1")
    assert not sends_key_in_clear("https://provider.example/v1")
    assert not sends_key_in_clear("http://127.0.0.1:1/v1")
