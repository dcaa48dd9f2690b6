"""`baton gateway` before real engines, here or on a node, for as long as a block lasts."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from namespaces import on

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from namespaces import Node

READY_S = 60.0
END_S = 30.0


@contextlib.contextmanager
def gateway_on(
    node: Node | None,
    port: int,
    log: Path,
    *,
    prefill: Sequence[str],
    decode: Sequence[str],
    more: Sequence[str] = (),
) -> Iterator[str]:
    """A gateway that is ready; its URL.

    Args:
        node: Where it runs; None for here.
        port: Of its loopback.
        log: What it writes goes there.
        prefill: URLs of prefill engines.
        decode: URLs of decode engines.
        more: Further arguments.

    Raises:
        RuntimeError: It ended, or did not become ready in time.
    """
    command = [sys.executable, "-m", "baton.cli", "gateway", "--port", str(port), *more]
    for option, urls in (("--prefill", prefill), ("--decode", decode)):
        command += [part for url in urls for part in (option, url)]
    with log.open("wb") as out:
        process = subprocess.Popen(on(node, command), stdout=out, stderr=out)
        try:
            url = f"http://127.0.0.1:{port}"
            _wait_until_ready(url, node, process, log)
            yield url
        finally:
            process.terminate()
            try:
                process.wait(END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait_until_ready(
    url: str, node: Node | None, process: subprocess.Popen[bytes], log: Path
) -> None:
    look = (
        "import sys, urllib.request as u; sys.exit(b'\"ready\"' not in u.urlopen("
        f"'{url}/ready', timeout=2).read())"
    )
    until = time.monotonic() + READY_S
    while time.monotonic() < until and process.poll() is None:
        asked = on(node, [sys.executable, "-c", look])
        if subprocess.run(asked, capture_output=True, check=False).returncode == 0:
            return
        time.sleep(0.3)
    tail = log.read_text(encoding="utf-8", errors="replace")[-1000:]
    raise RuntimeError(f"the gateway at {url} did not become ready: {tail}")
