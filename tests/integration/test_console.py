"""The console in a real browser, in front of simulated engines under load."""

from __future__ import annotations

import json
import shutil
import subprocess

import httpx
import pytest
from bench.console_stage import BLOCK, MODEL, Stage

from baton.spec.schema import Auth
from tests.integration.console_browser import AXE, ROOT, chromium, visit

pytestmark = pytest.mark.slow
HOSTILE = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def browser():
    with chromium() as running:
        yield running


@pytest.fixture(scope="module")
def busy(browser):
    """Two engines a side, with requests all the time."""
    with Stage(rate=5) as stage:
        yield stage


@pytest.fixture
def seen(browser, busy):
    """The console of the busy stage, once it shows requests."""
    with visit(browser, busy.url) as opened:
        opened.sees("The newest")
        yield opened
        assert opened.faults == []
        assert opened.foreign == []


def test_what_runs_where_is_shown_in_pools_and_pairs(seen):
    """Each engine with its node, state and load; each pair with what it did."""
    page = seen.page
    for role in ("Prefill", "Decode"):
        pool = page.get_by_role("region", name=f"{role} pool")
        assert pool.get_by_role("listitem").count() == 2
        assert "● ready" in pool.inner_text()
        assert "node-" in pool.inner_text()
    page.get_by_role("row", name="prefill-1 → decode-1").wait_for()
    pairs = page.get_by_role("region", name="Pairs").inner_text()
    assert "simulated" in pairs
    assert "not verified" in pairs
    for name in ("Requests", "In flight", "TTFT, median"):
        assert page.locator("dt", has_text=name).first.is_visible()
    assert "P/D" in page.locator("#numbers").inner_text()


def test_requests_fill_the_waterfall_and_none_of_their_words(seen):
    """Way, reason, tokens and stages; a row opens by keyboard and shows its steps."""
    page = seen.page
    table = page.get_by_role("region", name="List of requests")
    assert "mode_always" in table.inner_text()
    table.locator(".bar[role=img][aria-label*='prefill'][aria-label*='decode']").first.wait_for()
    table.get_by_role("button", name="Details of request").first.focus()
    page.keyboard.press("Enter")
    table.locator("button[aria-expanded=true]").wait_for()  # no longer the first by now, perhaps
    assert "Steps, in the order in which they ended" in table.inner_text()
    seen.sees("The list stands still while details are open")
    assert "that nobody reads" not in seen.text()


def test_rows_that_are_read_stay_and_others_come_again_when_none_is_open(seen):
    """Also when the page is held still, and when another kind of requests is chosen meanwhile."""
    page = seen.page
    page.get_by_role("button", name="Hold still").click()
    before = page.locator("#requests .id").all_inner_texts()
    for _ in range(2):  # of the first it is not known that the page has taken it
        with page.expect_response(
            lambda told: "/baton/console" in told.url and told.json()["requests"]["ended"]
        ):
            pass
    page.get_by_role("button", name="Details of request").nth(1).click()
    assert page.locator("#requests .id").all_inner_texts() == before
    page.get_by_role("button", name="Hold still").click()
    seen.sees("The list stands still while details are open")
    assert page.locator("#requests .id").all_inner_texts() == before
    page.locator("#requests select").first.select_option("alone")
    assert page.get_by_text("The list stands still").count() == 0
    assert page.locator("#requests [aria-expanded=true]").count() == 0


def test_the_chart_has_lines_and_the_same_numbers_as_a_table(seen):
    """Whoever does not see the picture reads the table."""
    page = seen.page
    page.wait_for_function("Number(document.querySelector('.plot').dataset.lines) >= 4")
    assert page.locator(".plot canvas").is_visible()
    legend = page.locator("table.legend").inner_text()
    assert all(stage in legend for stage in ("prefill", "handoff", "decode"))
    assert " ms" in legend
    page.get_by_text("The chart as a table").click()
    page.get_by_role("region", name="The chart as a table").get_by_text(" ms").first.wait_for()
    page.get_by_label("p50").check(force=True)
    seen.sees("p50 of each stage")


def test_the_chat_box_streams_and_says_where_the_time_of_that_request_went(seen):
    """TTFT of the gateway and of this browser, way, stages, engines."""
    page = seen.page
    page.get_by_label("Your message").fill("Is anybody there?")
    page.keyboard.press("Enter")
    page.locator("#chat").get_by_text("Done:").wait_for()
    shown = page.locator("#chat").inner_text()
    assert "Is anybody there?" in shown
    for words in ("at the gateway", "in this browser", "P/D (mode_always)", "prefill", "decode"):
        assert words in shown
    assert "prefill-" in page.locator("#chat .timing").inner_text()
    stored = page.evaluate("JSON.stringify([{...localStorage}, {...sessionStorage}])")
    assert "anybody" not in stored


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1440, 390])
def test_axe_finds_nothing_serious(browser, busy, scheme, width):
    """Contrast, names, roles and structure, in both colour schemes, wide and narrow."""
    if not AXE.is_file():
        pytest.skip("axe-core is not installed: `make console` brings it")
    size = {"width": width, "height": 900}
    with visit(browser, busy.url, color_scheme=scheme, viewport=size) as opened:
        opened.sees("The newest")
        opened.page.get_by_role("button", name="Details of request").first.click()
        assert opened.violations() == []
        assert opened.page.evaluate("document.documentElement.scrollWidth") <= width


def test_dark_and_light_follow_the_system_and_the_choice_stays(browser, busy):
    """As the system has it, until somebody chooses."""
    ground = "getComputedStyle(document.documentElement).backgroundColor"
    with visit(browser, busy.url, color_scheme="dark") as opened:
        page = opened.page
        dark = page.evaluate(ground)
        page.get_by_label("Theme").select_option("light")
        light = page.evaluate(ground)
        assert light != dark
        page.reload()
        assert page.evaluate(ground) == light
        page.get_by_label("Theme").select_option("auto")
        assert page.evaluate(ground) == dark


def test_a_keyboard_alone_reaches_everything_and_the_focus_is_seen(seen):
    """From the skip link through every control, once around, without a trap."""
    page = seen.page
    page.evaluate("document.getElementById('hold').click()")  # rows that come and go do not count
    reached = []
    for _ in range(120):
        page.keyboard.press("Tab")
        found = page.evaluate("""() => {
          const at = document.activeElement;
          if (at === document.body) return null; // out at the end, into the browser's own controls
          const ring = at.matches('.choice input') ? at.nextElementSibling : at;
          const outline = getComputedStyle(ring).outlineStyle;
          return [at.id || at.name || at.textContent.slice(0, 30), outline];
        }""")
        if found is None:
            break
        reached.append(found)
    names = [name for name, _ in reached]
    assert names[0] == "Skip to the content"
    for control in ("hold", "theme", "chat-text", "percentile", "span"):
        assert control in names
    assert "Ask the engines again" in names
    assert "Licences of others" in names
    assert found is None
    assert [name for name, outline in reached if outline == "none"] == []


def test_a_lost_gateway_is_said_in_words_and_what_comes_back_is_shown(browser):
    """Also when it is another process that knows nothing of the first."""
    with Stage(rate=4) as stage, visit(browser, stage.url) as opened:
        opened.sees("Live.")
        opened.sees("The newest")
        first = opened.page.locator("#about").inner_text()
        stage.lose_gateway()
        opened.sees("Connection lost.")
        opened.sees("The gateway does not answer. This page goes on trying.")
        assert "prefill-1" in opened.text()
        stage.bring_gateway_back()
        opened.sees("Live.")
        opened.page.get_by_text("The gateway does not answer").wait_for(state="detached")
        opened.page.wait_for_function(
            "first => document.getElementById('about').innerText !== first", arg=first
        )


def test_behind_keys_the_page_asks_for_one_and_keeps_it_for_this_tab_only(browser, monkeypatch):
    """A wrong key is said; a right one is in no address and in no storage that lasts."""
    monkeypatch.setenv("CONSOLE_KEYS", "ann:k-right")
    block = BLOCK.model_copy(update={"auth": Auth(api_keys_env="CONSOLE_KEYS")})
    with Stage(block=block, rate=0) as stage, visit(browser, stage.url) as opened:
        page = opened.page
        opened.sees("This gateway asks for a key")
        assert "prefill-1" not in opened.text()
        page.get_by_label("API key").fill("k-wrong")
        page.keyboard.press("Enter")
        opened.sees("The key was refused.")
        page.get_by_label("API key").fill("k-right")
        page.keyboard.press("Enter")
        opened.sees("Live.")
        opened.sees("prefill-1")
        assert page.evaluate("Object.values(sessionStorage).includes('k-right')")
        assert "k-right" not in page.evaluate("JSON.stringify({...localStorage}) + document.cookie")
        assert not any("k-right" in url for url in opened.asked)
        page.get_by_label("Your message").fill("Hello")
        page.get_by_role("button", name="Send").click()
        page.locator("#chat").get_by_text("Done:").wait_for()
        page.get_by_role("button", name="Forget the key").click()
        opened.sees("This gateway asks for a key")
        assert page.evaluate("sessionStorage.length") == 0
        assert opened.foreign == []


def test_names_that_look_like_markup_are_shown_as_they_are(browser):
    """Of models, engines, pairs, nodes, verdicts and errors: text, whatever is in it."""
    stage = Stage(prefill=[f"p{HOSTILE}"], decode=[f"d{HOSTILE}"], model=HOSTILE, rate=4)
    with stage, visit(browser, stage.url) as opened:
        opened.sees("The newest")
        verdict = {
            "prefill": f"p{HOSTILE}",
            "decode": f"d{HOSTILE}",
            "outcome": "FAIL",
            "reasons": [{"weight": "fail", "fact": f"because {HOSTILE}"}],
        }
        told = httpx.post(f"{stage.url}/baton/verify/verdicts", json={"verdicts": [verdict]})
        assert told.json() == {"kept": 1}
        opened.sees("baton verify failed 1 pair")
        opened.sees(f"because {HOSTILE}")
        opened.page.get_by_label("Your message").fill(HOSTILE)
        opened.page.get_by_role("button", name="Send").click()
        opened.page.locator("#chat").get_by_text("Done:").wait_for()
        opened.page.get_by_role("button", name="Details of request").first.click()
        assert opened.text().count(HOSTILE) >= 6
        assert opened.page.locator("img").count() == opened.page.locator("img[alt]").count() == 0
        assert opened.faults == []


def test_what_is_missing_is_said(browser):
    """No request yet, no prefill engine, no decode engine, and none at all."""
    with Stage(rate=0) as stage, visit(browser, stage.url) as opened:
        opened.sees("No request has ended since this page was opened")
        opened.sees("No pair has handed KV over yet.")
        stage.leave("prefill-1", "prefill-2")
        opened.sees("No prefill engine is ready: decode reads the prompts as well")
        opened.sees("No prefill engine is known.")
        stage.leave("decode-1", "decode-2")
        opened.sees("No decode engine is ready: requests are refused until one is.")
        opened.page.get_by_label("Your message").fill("Hello?")
        opened.page.locator("#chat button:disabled", has_text="Send").wait_for()
        assert opened.faults == []


def test_that_it_asks_is_said_before_the_first_answer_and_a_404_as_switched_off(browser, busy):
    """Loading, and the 404 of a gateway that was started anew without the console."""
    waits = []
    answer = json.dumps({"error": {"message": "Unknown request URL."}})
    with visit(browser, busy.url) as opened:
        opened.page.route("**/baton/console*", lambda route: waits.append(route))  # noqa: PLW0108
        opened.page.reload()
        opened.sees("Asking the gateway…")
        while not waits:  # words that stand there before the page asks
            opened.page.wait_for_timeout(50)
        waits[0].fulfill(status=404, body=answer)
        opened.sees("This gateway serves no console.")


def test_sixty_four_engines_have_room(browser):
    """Those in trouble first, pairs without lines, nothing wider than the window."""
    with Stage(rate=10) as stage, visit(browser, stage.url) as opened:
        stage.crowd(prefill=16, decode=48)
        opened.sees("16 of 16 engines ready")
        opened.sees("48 of 48 engines ready")
        opened.sees("768 pairs possible")
        opened.page.get_by_role("button", name="Show all").wait_for()
        opened.page.get_by_role("button", name="Show all").click()
        assert opened.page.evaluate("document.documentElement.scrollWidth") <= 1440
        assert opened.faults == []


def test_with_less_motion_nothing_moves_by_itself(browser, busy):
    """`prefers-reduced-motion`."""
    for motion, moves in (("reduce", False), ("no-preference", True)):
        with visit(browser, busy.url, reduced_motion=motion) as opened:
            opened.sees("of KV")
            lasting = opened.page.evaluate(
                "parseFloat(getComputedStyle(document.querySelector('.fill')).transitionDuration)"
            )
            assert (lasting > 0) is moves


def test_the_model_is_named_in_the_head_and_the_gateway_in_the_foot(seen):
    """Which deployment this is, and which gateway answered."""
    assert MODEL in seen.page.locator("header").inner_text()
    assert "gateway " in seen.page.locator("footer").inner_text()
    licences = httpx.get(f"{seen.url}/console/licences.txt").text
    assert "uplot" in licences
    assert "Permission is hereby granted" in licences


def test_the_arithmetic_of_the_page_holds():
    """`npm test`: percentiles, buckets, event streams, several gateways; needs Node.js only."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("no Node.js here: `make test-programs` installs it, as root on Debian")
    done = subprocess.run(
        [node, "--test", "test/pure.test.js"], cwd=ROOT / "console", capture_output=True,
        text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:]
