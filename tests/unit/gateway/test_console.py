"""The console's routes: off by default, a page without data, data behind keys, verdicts kept."""

from __future__ import annotations

import json
import sys

import aiohttp
import pytest

from baton.errors import ConsoleNotBuilt
from baton.gateway import console
from baton.gateway.verdicts import MOST, MOST_BYTES, Verdicts
from baton.observe.console.bundle import FILES, read_bundle
from baton.observe.timeline import Timeline, TimelineRing
from baton.spec.schema import Auth, BatonBlock, Console
from tests.unit.gateway.fakes import stack

ON = BatonBlock(console=Console(enabled=True))
VERDICT = {"prefill": "p", "decode": "d", "outcome": "PASS"}


@pytest.fixture
def built(tmp_path, monkeypatch):
    """A bundle of stand-ins: the real one is made by npm."""
    for name in FILES:
        (tmp_path / name).write_text(f"this is {name}", encoding="utf-8")
    monkeypatch.setattr(console, "read_bundle", lambda: read_bundle(tmp_path))
    return tmp_path


async def _get(s, path, **headers):
    async with s.session.get(s.url + path, headers=headers, allow_redirects=False) as r:
        return r.status, await r.read(), r.headers


async def test_without_being_switched_on_there_is_no_console(built):
    """The same 404 as of any address that is not served; also for what would show data."""
    async with stack() as s:
        unknown = json.loads((await _get(s, "/no-such"))[1])
        for path in ("/console", "/console/", "/console/console.js", "/baton/console"):
            status, raw, _ = await _get(s, path)
            assert status == 404
            said = json.loads(raw)
            assert said["error"].pop("message") == f"Unknown request URL: GET {path}."
            assert said["error"].items() <= unknown["error"].items()
        assert (await s.post("/baton/verify/verdicts", {"verdicts": []}))[0] == 404


async def test_the_page_and_its_files_are_served_with_a_policy_that_lets_nothing_else_run(built):
    """No inline script, no foreign origin, no frame, no markup out of text, no copy kept."""
    async with stack(settings=ON) as s:
        for path, name in (("/console", "index.html"), *((f"/console/{n}", n) for n in FILES)):
            status, raw, headers = await _get(s, path)
            assert (status, raw.decode()) == (200, f"this is {name}")
            assert headers["content-type"].encode() == FILES[name]
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["cache-control"] == "no-store"
            policy = dict(
                part.strip().split(" ", 1) for part in headers["content-security-policy"].split(";")
            )
            assert policy["default-src"] == policy["frame-ancestors"] == "'none'"
            assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
            assert policy["require-trusted-types-for"] == "'script'"
            assert "unsafe" not in headers["content-security-policy"]


@pytest.mark.parametrize("name", ["../__init__.py", "..%2f__init__.py", "bundle.py", "x/y", "a.js"])
async def test_nothing_but_the_bundle_is_served(built, name):
    """Files are looked up by name among five, never on the disk."""
    async with stack(settings=ON) as s:
        url = aiohttp.client.URL(f"{s.url}/console/{name}", encoded=True)
        async with s.session.get(url) as r:
            assert r.status == 404


async def test_one_slash_too_many_leads_to_the_page(built):
    """Its files lie beside it; the target is relative, so that a prefix stays."""
    async with stack(settings=ON, route_prefix="/qwen") as s:
        status, _, headers = await _get(s, "/qwen/console/")
        assert (status, headers["location"]) == (308, "../console")
        assert (await _get(s, "/qwen/console"))[0] == 200
        assert (await _get(s, "/qwen/baton/console"))[0] == 200


async def test_a_bundle_that_is_not_there_is_said_with_place_and_cure(built):
    """And served as soon as somebody has built it, without a restart."""
    (built / "console.js").unlink()
    async with stack(settings=ON) as s:
        status, raw, _ = await _get(s, "/console")
        error = json.loads(raw)["error"]
        assert (status, error["code"]) == (503, "console_not_built")
        for part in ("console.js", str(built), "make console"):
            assert part in error["message"]
        (built / "console.js").write_text("now", encoding="utf-8")
        assert (await _get(s, "/console/console.js"))[:2] == (200, b"now")


async def test_the_page_opens_without_a_key_and_its_data_do_not(built, monkeypatch):
    """A browser cannot send a key with the first request; the page asks for it."""
    monkeypatch.setenv("CONSOLE_KEYS", "ann:k-1")
    settings = ON.model_copy(update={"auth": Auth(api_keys_env="CONSOLE_KEYS")})
    async with stack(settings=settings) as s:
        assert (await _get(s, "/console"))[0] == (await _get(s, "/console/console.js"))[0] == 200
        assert (await _get(s, "/baton/console"))[0] == 401
        assert (await _get(s, "/baton/console?key=k-1"))[0] == 401
        assert (await s.post("/baton/verify/verdicts", {"verdicts": []}))[0] == 401
        assert (await _get(s, "/baton/console", authorization="Bearer k-1"))[0] == 200


async def test_the_data_are_engines_pairs_and_new_requests_without_a_word_of_them(built):
    """What a page has read it is not sent again; another gateway's number says nothing here."""
    async with stack(settings=ON, engine_secret="s3cret-value") as s:
        await s.complete(prompt="a prompt that is private " * 40)
        _, raw, headers = await _get(s, "/baton/console")
        found = json.loads(raw)
        assert headers["cache-control"] == "no-store"
        assert {engine["role"] for engine in found["engines"]} == {"prefill", "decode"}
        assert found["models"] == ["m"]
        (ended,) = found["requests"]["ended"]
        assert (ended["route"], ended["outcome"]) == ("pd", "ok")
        assert b"private" not in raw
        assert b"s3cret" not in raw
        own = found["gateway"]["id"]
        for seen, sent in (
            (f"{own}.1", 0),
            (f"{own}.0", 1),
            ("other.1", 1),
            (f"{own}.99", 1),
            (".x,", 1),
        ):
            again = json.loads((await _get(s, f"/baton/console?seen={seen}"))[1])
            assert len(again["requests"]["ended"]) == sent, seen


async def test_a_pair_shows_its_speed_where_the_size_of_kv_is_known(built, monkeypatch):
    """Tokens a second times bytes a token; no pair of an engine that has left."""
    async with stack(settings=ON) as s:
        pair = {"prefill": s.prefill[0].url, "decode": s.decode[0].url, "ok": True}
        pairs = [{**pair, "tokens_per_s": 1e4}, {**pair, "decode": "gone", "tokens_per_s": None}]
        monkeypatch.setattr(s.app.links, "as_list", lambda: pairs)
        for size, speed in ((0, None), (100_000, 1.0)):
            lease = s.app.directory.all_engines()
            s.app.directory._see(
                tuple(e.model_copy(update={"kv_bytes_per_token": size}) for e in lease)
            )
            (shown,) = json.loads((await _get(s, "/baton/console"))[1])["pairs"]
            assert shown == {**pairs[0], "gb_per_s": speed}


async def test_verdicts_that_verify_tells_are_shown_while_their_engines_are_here(built):
    """With the time; a pair of engines that nobody knows is not shown."""
    async with stack(settings=ON) as s:
        real = {**VERDICT, "prefill": s.prefill[0].url, "decode": s.decode[0].url}
        body = {"verdicts": [{**real, "extra": 1}, VERDICT]}
        assert (await s.post("/baton/verify/verdicts", body))[0] == 200
        (shown,) = json.loads((await _get(s, "/baton/console"))[1])["verdicts"]
        assert (shown["outcome"], shown["decode"]) == ("PASS", s.decode[0].url)
        assert shown["told_at"] > 0
        for untyped in ((), ("content-type",)):  # octet-stream, and no type at all
            async with s.session.post(
                s.url + "/baton/verify/verdicts", data=b"{}", skip_auto_headers=untyped
            ) as r:
                assert r.status == 415  # a page of another site may send such
        for wrong in ({}, {"verdicts": [{**VERDICT, "outcome": "FINE"}]}, {"verdicts": "x"}):
            assert (await s.post("/baton/verify/verdicts", wrong))[0] == 400


def test_of_each_pair_the_last_verdict_is_kept_and_not_more_than_so_many():
    """Whoever has a key cannot fill the memory."""
    kept = Verdicts()
    for number in range(MOST + 5):
        kept.take({"verdicts": [{**VERDICT, "decode": str(number)}]})
    kept.take({"verdicts": [{**VERDICT, "decode": str(MOST), "outcome": "FAIL"}]})
    everybody = {"p", *(str(number) for number in range(MOST + 5))}
    found = kept.as_list(everybody)
    assert len(found) == MOST
    assert [v["outcome"] for v in found if v["decode"] == str(MOST)] == ["FAIL"]


@pytest.mark.parametrize("sign", ["x", "é", "\N{DIRECT HIT}"])
def test_long_reasons_fill_no_more_memory_than_is_said(sign):
    """In bytes, not letters; the oldest go first, and a pair that is told of again counts once."""
    reason = {"weight": "fail", "fact": sign * 2000, "cure": sign * 2000}
    kept = Verdicts()
    for _ in range(2):
        for number in range(90):
            told = {**VERDICT, "decode": str(number), "reasons": [reason] * 32}
            kept.take({"verdicts": [told]})
    found = kept.as_list({"p", *(str(number) for number in range(90))})
    texts = (each[name] for v in found for each in v["reasons"] for name in ("fact", "cure"))
    held = sum(sys.getsizeof(text) for text in texts)
    assert 0.8 * MOST_BYTES < held <= MOST_BYTES
    assert [v["decode"] for v in found] == [str(n) for n in range(90 - len(found), 90)]
    kept.take({"verdicts": [{**VERDICT, "decode": "small"}]})
    assert kept.as_list({"p", "small", "89"})[-1]["decode"] == "small"


def test_the_ring_hands_out_what_is_new_and_the_newest_of_too_many():
    """Oldest first."""
    ring = TimelineRing(size=4)
    for number in range(6):
        ring.add(Timeline(str(number), "/x"))

    def ids(number, most):
        return [one["request_id"] for one in ring.after(number, most)]

    assert ids(5, 10) == ["5"]
    assert ids(6, 10) == []
    assert ids(0, 10) == ["2", "3", "4", "5"]
    assert ids(0, 2) == ["4", "5"]
    assert ids(7, 10) == ["2", "3", "4", "5"]


def test_a_bundle_is_whole_or_none(tmp_path):
    """A script without its style sheet is no console."""
    with pytest.raises(ConsoleNotBuilt, match=r"index\.html"):
        read_bundle(tmp_path)
