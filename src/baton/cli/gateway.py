"""`baton gateway`: a gateway in front of engines that already run. Needs no Ray."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from baton.errors import ConfigRefused, EnvironmentUnfit, PortTaken

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from baton.cli.tls import Tls
    from baton.gateway.app import GatewayApp
    from baton.spec.schema import BatonBlock


@click.command("gateway")
@click.option(
    "--prefill", "prefill_urls", multiple=True, metavar="URL", help="A prefill engine. Repeat."
)
@click.option(
    "--decode", "decode_urls", multiple=True, metavar="URL", help="A decode engine. Repeat."
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", default=8000, show_default=True, type=click.IntRange(0, 65_535))
@click.option(
    "--config",
    "config_file",
    type=click.Path(path_type=Path),
    help="A file with a `baton:` block: alone, in a Serve config or in a RayService manifest.",
)
@click.option(
    "--engine-secret-env",
    metavar="NAME",
    help="Variable with the secret that opens the engines' ports.",
)
@click.option(
    "--workers",
    default=1,
    show_default=True,
    type=click.IntRange(1, 1000),
    help="Processes that share the port, each a whole gateway with its own limits and metrics.",
)
@click.option(
    "--console",
    is_flag=True,
    envvar="BATON_CONSOLE",
    show_envvar=True,
    help="Serve the console at /console, whatever the file says.",
)
@click.option("--route-prefix", default="/", show_default=True, help="Path to serve under.")
@click.option(
    "--insecure-no-auth",
    is_flag=True,
    help="Listen on an address that others can reach although no key is asked for.",
)
@click.option(
    "--tls-cert",
    type=click.Path(path_type=Path),
    help="Certificate chain (PEM): the endpoint speaks HTTPS. Read again on SIGHUP.",
)
@click.option("--tls-key", type=click.Path(path_type=Path), help="Its private key (PEM).")
def command(  # noqa: PLR0917  (click passes by name)
    prefill_urls: tuple[str, ...],
    decode_urls: tuple[str, ...],
    host: str,
    port: int,
    config_file: Path | None,
    engine_secret_env: str | None,
    workers: int,
    console: bool,
    route_prefix: str,
    insecure_no_auth: bool,
    tls_cert: Path | None,
    tls_key: Path | None,
) -> None:
    """Start a gateway in front of prefill and decode engines that already run.

    SIGHUP reads the keys of callers and the certificate again.
    """
    from baton.cli.tls import Tls
    from baton.gateway.app import build_gateway_app
    from baton.gateway.directory import FixedDirectory
    from baton.observe import logs
    from baton.spec.hosts import is_loopback

    settings = _settings(config_file)
    if workers > 1:
        gateways = settings.gateway.model_copy(update={"num_replicas": workers})
        settings = settings.model_copy(update={"gateway": gateways})
    if console:
        shown = settings.console.model_copy(update={"enabled": True})
        settings = settings.model_copy(update={"console": shown})
    logs.configure(settings.logging)
    auth = settings.auth
    if auth.is_unsaid and not (is_loopback(host) or insecure_no_auth):
        raise ConfigRefused(
            f"{host} can be reached by others, and no API key is asked for",
            place="--host",
            cure="set auth.api_keys_env or api_keys_file in the file; if it is meant to be open,"
            " auth.allow_anonymous: true or --insecure-no-auth",
        )
    tls = None if tls_cert is None and tls_key is None else Tls.checked(tls_cert, tls_key)
    secret = _secret(engine_secret_env)

    def made() -> GatewayApp:
        directory = FixedDirectory(
            prefill_urls,
            decode_urls,
            secret,
            asks_block_size=settings.disaggregate.first_token == "early",  # noqa: S105 - of a text
        )
        return build_gateway_app(settings, directory, route_prefix=route_prefix)

    app = made()  # also where processes of their own make theirs: what is wrong shows here
    listener = _bind(host, port)
    name = f"[{host}]" if ":" in host else host
    scheme = "http" if tls is None else "https"

    def ready() -> None:
        port = listener.getsockname()[1]
        click.echo(f"gateway listens on {scheme}://{name}:{port}", err=True)
        if settings.console.enabled:
            prefix = route_prefix.rstrip("/")
            click.echo(f"its console is at {scheme}://{name}:{port}{prefix}/console", err=True)

    try:
        if workers == 1:
            _serve(app, listener, settings, tls, ready)
            return
        from baton.cli.workers import Workers, keeper_of, one_of

        listener = keeper_of(listener)

        def serve(listens: Callable[[], None]) -> None:
            with one_of(listener) as own:
                _serve(made(), own, settings, tls, listens)

        Workers(workers, serve).run(ready)
    finally:
        listener.close()


def _secret(name: str | None) -> str | None:
    import os

    if name is None:
        return None
    value = os.environ.get(name)
    if not value:
        raise ConfigRefused(
            f"--engine-secret-env names {name}, which is unset or empty", cure=f"set {name}"
        )
    return value


def _settings(path: Path | None) -> BatonBlock:
    """The `baton:` block of a file, or its defaults."""
    from baton.spec.load import load_file
    from baton.spec.schema import BatonBlock
    from baton.spec.settings import settings_of

    return BatonBlock() if path is None else settings_of(load_file(path))


def _bind(host: str, port: int) -> socket.socket:
    """A listening socket, so that a port that is taken shows before anything starts."""
    import errno
    import socket

    try:
        family, kind, proto, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except socket.gaierror as exc:
        raise ConfigRefused(f"{host!r} is not an address: {exc.strerror}", place="--host") from exc
    listener = socket.socket(family, kind, proto)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
        listener.listen(2048)
    except OSError as exc:
        listener.close()
        if exc.errno == errno.EADDRINUSE:
            raise PortTaken(
                f"port {port} is taken{_owner(port)}",
                place=f"{host}:{port}",
                cure="choose another --port",
            ) from exc
        raise EnvironmentUnfit(
            f"cannot listen: {exc.strerror}", place=f"{host}:{port}", cure="choose another address"
        ) from exc
    return listener


def _owner(port: int) -> str:
    """` by pid 12 (python -m …)`, when this user may know."""
    import psutil

    try:
        for connection in psutil.net_connections("tcp"):
            listens = connection.status == psutil.CONN_LISTEN
            if listens and connection.laddr and connection.laddr.port == port and connection.pid:
                words = " ".join(psutil.Process(connection.pid).cmdline())
                return f" by pid {connection.pid} ({words[:120]})"
    except psutil.Error:
        pass
    return ""


def _serve(
    app: GatewayApp,
    listener: socket.socket,
    settings: BatonBlock,
    tls: Tls | None,
    ready: Callable[[], None],
) -> None:
    """Run until SIGINT or SIGTERM, then let open requests end."""
    import asyncio
    import signal

    import uvicorn

    from baton.heap import collect_rarely

    config = uvicorn.Config(
        app,
        loop="uvloop",
        http="httptools",
        ws="none",
        lifespan="on",
        access_log=False,
        log_config=None,
        server_header=False,
        proxy_headers=False,  # nobody here asks for the caller's address
        timeout_graceful_shutdown=int(settings.engines.drain_timeout_s),
        ssl_certfile=None if tls is None else tls.cert,
        ssl_keyfile=None if tls is None else tls.key,
    )
    server = uvicorn.Server(config)

    async def run() -> None:
        def stop() -> None:
            if server.should_exit:
                server.force_exit = True  # asked twice: do not wait for open requests
            server.should_exit = True

        # uvicorn's own handlers would end the process by the signal; ours end it with status 0.
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop)
        reloads: set[asyncio.Task[bool]] = set()

        def read_again() -> None:
            task = loop.create_task(app.keys.reload())
            reloads.add(task)
            task.add_done_callback(reloads.discard)
            if tls is not None and config.ssl is not None:
                tls.renew(config.ssl)

        loop.add_signal_handler(signal.SIGHUP, read_again)
        config.load()
        server.lifespan = config.lifespan_class(config)
        await server.startup(sockets=[listener])
        if server.should_exit:
            raise EnvironmentUnfit("the gateway could not start", cure="see the lines above")
        ready()
        collect_rarely()
        await server.main_loop()
        await server.shutdown(sockets=[listener])

    with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
        runner.run(run())
