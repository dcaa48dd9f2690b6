"""What the Python probes share: what is asked, and how the outcome is told.

A probe is a script that gets the endpoint's URL and prints one JSON object: the name of each case
and `ok`, or what was wrong. It runs under another interpreter than the tests, so it imports nothing
of Baton.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import sys
from typing import Any

MODEL = "tiny"
PD = {"x-baton-disaggregate": "always"}
TEXT = "The crowd counts the steps of the runner who hands the baton to the next one. " * 3
LIMIT = 12
ROOM = 220
CITIES = ("Berlin", "Tokyo")
SCHEMA = {
    "title": "forecast",
    "description": "What is asked of a weather service.",
    "type": "object",
    "properties": {
        "city": {"type": "string", "enum": list(CITIES)},
        "tomorrow": {"type": "boolean"},
    },
    "required": ["city", "tomorrow"],
    "additionalProperties": False,
}
TOOL = {
    "type": "function",
    "function": {
        "name": "forecast",
        "description": SCHEMA["description"],
        "parameters": {key: SCHEMA[key] for key in ("type", "properties", "required")},
    },
}
# Left to itself the tiny model fills a shape with white space and never ends it. 257: end of text.
ENDS = {**{str(ord(sign)): -100 for sign in " \t\r\n"}, "257": 100}


class Wrong(Exception):
    """A case saw something else than it should."""


def check(holds: object, why: str) -> None:
    if not holds:
        raise Wrong(why)


def is_forecast(found: Any) -> None:
    """Arguments, or an answer, of the asked shape."""
    found = json.loads(found) if isinstance(found, str) else found
    check(found.get("city") in CITIES, f"city is {found!r:.120}")
    check(isinstance(found.get("tomorrow"), bool), f"tomorrow is {found!r:.120}")


def run(cases: dict[str, Any]) -> None:
    """Run all cases against the URL on the command line and print what came of them."""
    url = sys.argv[1]
    told = {}
    for name, case in cases.items():
        try:
            done = case(url)
            if inspect.isawaitable(done):
                asyncio.run(_wait(done))
            told[name] = "ok"
        except Exception as exc:  # noqa: BLE001 - the test shows it
            told[name] = f"{type(exc).__name__}: {str(exc)[:600]}"
    sys.stdout.write(json.dumps(told) + "\n")


async def _wait(done: Any) -> None:
    await done
