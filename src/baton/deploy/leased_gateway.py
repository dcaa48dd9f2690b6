"""A gateway without Ray that reads leases over HTTP, as it reads them from the actor under Ray.

`python -m baton.deploy.leased_gateway URL CONFIG` polls `URL` for a `DirectorySnapshot` in JSON.
The drill uses it to take the directory away from a gateway. Logs where it listens, as
`baton gateway` says it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import socket
import sys
from pathlib import Path

import httpx
import uvicorn

from baton.gateway.app import build_gateway_app
from baton.gateway.directory import LeaseDirectory
from baton.spec.lease import DirectorySnapshot
from baton.spec.schema import BatonBlock

_INTERVAL_S = 0.5
_TIMEOUT_S = 1.0

log = logging.getLogger("baton.deploy.leased_gateway")


async def _serve(directory_url: str, settings: BatonBlock) -> None:
    async with httpx.AsyncClient(timeout=_TIMEOUT_S, trust_env=False) as client:

        async def fetch() -> DirectorySnapshot:
            answer = await client.get(directory_url)
            answer.raise_for_status()
            return DirectorySnapshot.model_validate(answer.json())

        directory = LeaseDirectory(fetch, interval_s=_INTERVAL_S, timeout_s=_TIMEOUT_S)
        app = build_gateway_app(settings, directory)
        config = uvicorn.Config(
            app,
            http="httptools",
            ws="none",
            lifespan="on",
            log_config=None,
            access_log=False,
            timeout_graceful_shutdown=2,
        )
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            listener.listen(1024)
            log.info("gateway listens on http://127.0.0.1:%d", listener.getsockname()[1])
            await uvicorn.Server(config).serve(sockets=[listener])


def main(arguments: list[str]) -> None:
    """Serve until SIGTERM."""
    directory_url, config = arguments
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    settings = BatonBlock.model_validate(json.loads(Path(config).read_text(encoding="utf-8")))
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    asyncio.run(_serve(directory_url, settings))


if __name__ == "__main__":
    main(sys.argv[1:])
