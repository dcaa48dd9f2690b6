"""The deployed path of bench/gateway.py: Ray Serve's HAProxy and the gateway's replica.

The gateway deployment and the directory are those of `baton:build_pd_openai_app`. Only the engines
are not Ray's: two URLs are kept in the directory by this script, so that the deployed gateway and
the bare one are measured in front of the same engines.

    python bench/gateway_deployed.py --prefill URL --decode URL

says on stderr where it listens and what marks its processes, and runs until SIGTERM.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import sys
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

from gateway_engine import MODEL

from baton.spec.schema import BatonBlock

APP = "bench"
BENCH = Path(__file__).parent
LEASE_S = 10.0
SETTINGS = {
    "disaggregate": {"mode": "always"},
    "admission": {"max_inflight": 4096, "max_queue": 4096},
}
START_S = 150.0


def build_bench_app(args: dict[str, Any]) -> Any:
    """What Ray Serve builds: the gateway alone."""
    from baton.serve.gateway import gateway_deployment  # noqa: PLC0415  # imports Ray

    settings = BatonBlock.model_validate(args["baton"])
    return gateway_deployment(settings).bind(
        settings=settings.model_dump(mode="json"), model_id=MODEL, engines=[]
    )


def keep_leases(prefill: str, decode: str, over: threading.Event) -> None:
    """What replicas do for themselves: say every second that they live."""
    import ray  # noqa: PLC0415

    from baton.serve.registry import directory_actor  # noqa: PLC0415

    actor = directory_actor(APP)
    while not over.is_set():
        for role, url in (("prefill", prefill), ("decode", decode)):
            lease = {"replica_id": role, "role": role, "url": url, "engine_id": role}
            lease |= {"model_id": MODEL, "max_model_len": 8192, "kv_lease_s": 30.0}
            ray.get(actor.renew.remote(lease, LEASE_S))
        over.wait(1.0)


def wait_until_ready(url: str) -> None:
    """Until the edge passes requests on and the gateway knows both engines."""
    deadline_s = time.monotonic() + START_S
    while time.monotonic() < deadline_s:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/ready", timeout=5) as got:
            if b'"missing":[]' in got.read().replace(b" ", b""):
                return
        time.sleep(0.3)
    raise SystemExit(f"error: {url} is not ready after {START_S:.0f} s")


def main() -> None:
    """Deploy, say so, and stay until told to end."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prefill", required=True)
    parser.add_argument("--decode", required=True)
    options = parser.parse_args()
    from baton.deploy import serve_app  # noqa: PLC0415
    from baton.deploy.processes import free_port  # noqa: PLC0415
    from baton.deploy.ray_head import client_environment, start_head  # noqa: PLC0415

    over = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: over.set())
    port = free_port()
    paths = [str(BENCH), *filter(None, [os.environ.get("PYTHONPATH")])]
    head = start_head(APP, cpus=8, settings_environment={"PYTHONPATH": os.pathsep.join(paths)})
    try:
        with serve_app.connected(head.address, client_environment(head.auth_token)):
            application = {
                "name": APP,
                "import_path": "gateway_deployed:build_bench_app",
                "route_prefix": "/",
                "args": {"baton": SETTINGS},
            }
            serve_app.deploy(
                {
                    "http_options": {"host": "127.0.0.1", "port": port},
                    "applications": [application],
                }
            )
            leases = threading.Thread(
                target=keep_leases, args=(options.prefill, options.decode, over)
            )
            leases.start()
            try:
                wait_until_ready(f"http://127.0.0.1:{port}")
                print(f"marker {head.marker} folder {head.folder}", file=sys.stderr)
                print(f"listens on http://127.0.0.1:{port}", file=sys.stderr, flush=True)
                over.wait()
            finally:
                over.set()
                leases.join()
    finally:
        head.stop()
        shutil.rmtree(head.folder, ignore_errors=True)


if __name__ == "__main__":
    main()
