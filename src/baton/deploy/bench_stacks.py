"""Engines and a gateway for one side of `baton bench compare`, without Ray.

Both sides have the same engines, the same number of them and the same gateway; one hands KV over,
the other spreads whole requests over engines that do both. So what differs is disaggregation.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import tempfile
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self

import httpx

from baton.deploy.own_process import OwnProcess
from baton.deploy.processes import free_ports
from baton.errors import ConfigRefused, DeployFailed
from baton.spec.adapt import CPU_ENV
from baton.spec.schema import BatonBlock, Disaggregate, Logging, Recovery

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType

    from baton.spec.checked import CheckedApp

Side = Literal["together", "disaggregated"]
_READY_S = 900.0
_LOOK_S = 0.25
_REQUEST_S = 300.0


@dataclass(frozen=True)
class EngineToStart:
    """One engine: its command without the port, and what its process finds in the environment."""

    role: Literal["prefill", "decode"]
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)


class Engines(Protocol):
    """Says how the engines of a side are started."""

    @property
    def side_by_side(self) -> bool:
        """Whether both sides can be up at the same time: not where each engine has a GPU."""

    def of(self, side: Side, chunk_tokens: int | None) -> Sequence[EngineToStart]:
        """The engines; `chunk_tokens` for the baseline only."""

    def facts(self) -> dict[str, Any]:
        """What a report says of them."""


class Stack:
    """Engines and a gateway, running while the block lasts.

    Raises:
        DeployFailed: An engine ended, or was not ready in time; with the last line of its log.
    """

    def __init__(self, engines: Sequence[EngineToStart], side: Side) -> None:
        self._engines = engines
        self._side = side
        self._temporary = tempfile.TemporaryDirectory(prefix="baton-compare-")
        self._folder = Path(self._temporary.name)
        self._started: list[OwnProcess] = []
        self.endpoint = ""

    async def __aenter__(self) -> Self:
        try:
            places = [self._start(number, one) for number, one in enumerate(self._engines)]
            await asyncio.gather(
                *(self._healthy(p, url) for p, (_, url) in zip(self._started, places, strict=True))
            )
            self.endpoint = await self._gateway(places)
        except BaseException:
            self._end()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._end()

    def _end(self) -> None:
        for process in reversed(self._started):
            process.end_now()
        self._temporary.cleanup()

    def _start(self, number: int, engine: EngineToStart) -> tuple[str, str]:
        port, side_port = free_ports(2)
        log = self._folder / f"{engine.role}-{number}.log"
        environment = {
            **engine.environment,
            "VLLM_NIXL_SIDE_CHANNEL_PORT": str(side_port),
            "VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1",
        }
        command = [*engine.command, "--port", str(port)]
        self._started.append(OwnProcess(command, log, environment))
        return engine.role, f"http://127.0.0.1:{port}"

    async def _healthy(self, process: OwnProcess, url: str) -> None:
        deadline = time.monotonic() + _READY_S
        async with httpx.AsyncClient(timeout=5.0, trust_env=False) as http:
            while time.monotonic() < deadline and process.alive:
                with contextlib.suppress(httpx.HTTPError):
                    if (await http.get(f"{url}/health")).status_code == httpx.codes.OK:
                        return
                await asyncio.sleep(_LOOK_S)
        said = process.log.read_text(errors="replace").strip().splitlines()
        faults = [line for line in said if "Error" in line] or said or ["it said nothing"]
        raise DeployFailed(f"an engine did not start: {faults[-1][-300:]}")

    async def _gateway(self, places: Sequence[tuple[str, str]]) -> str:
        together = self._side == "together"
        settings = BatonBlock(
            disaggregate=Disaggregate(mode="never" if together else "always"),
            recovery=Recovery(request_timeout_s=_REQUEST_S),
            logging=Logging(level="warning"),
        )
        file = self._folder / "gateway.yaml"
        data = {"baton": settings.model_dump(mode="json", exclude_unset=True)}
        file.write_text(json.dumps(data), encoding="utf-8")
        command = [
            sys.executable,
            "-m",
            "baton.cli",
            "gateway",
            "--port",
            "0",
            "--config",
            str(file),
        ]
        for role, url in places:
            command += ["--decode" if together else f"--{role}", url]
        process = OwnProcess(command, self._folder / "gateway.log")
        self._started.append(process)
        url = await process.listens()
        deadline = time.monotonic() + 60.0
        async with httpx.AsyncClient(timeout=5.0, trust_env=False) as http:
            while time.monotonic() < deadline:
                with contextlib.suppress(httpx.HTTPError, ValueError):
                    if (await http.get(f"{url}/ready")).json()["missing"] == []:
                        return url
                await asyncio.sleep(_LOOK_S)
        raise DeployFailed("the gateway never had all engines ready")


@dataclass(frozen=True)
class SimulatedEngines:
    """Engines without a model: `options` are those of `baton engine`, without `--`."""

    prefill: int
    decode: int
    options: Mapping[str, float | int]
    side_by_side: bool = True

    def of(self, side: Side, chunk_tokens: int | None) -> Sequence[EngineToStart]:
        """The same number on both sides."""
        roles: list[Literal["prefill", "decode"]] = ["decode"] * (self.prefill + self.decode)
        if side == "disaggregated":
            roles[: self.prefill] = ["prefill"] * self.prefill
        words = [word for n, v in self.options.items() for word in (f"--{n}", str(v))]
        if chunk_tokens is not None:
            words += ["--max-num-batched-tokens", str(chunk_tokens)]
        command = (sys.executable, "-m", "baton.cli", "engine", "--simulated", *words)
        return [EngineToStart(role, (*command, "--role", role)) for role in roles]

    def facts(self) -> dict[str, Any]:
        """What a report says of them."""
        return {"engines": f"{self.prefill + self.decode} simulated", **self.options}


class VllmEngines:
    """Real vLLM engines, as the file's two configs say.

    The baseline's engines are the decode config's without KV transfer, as many as there are of
    both roles.

    Raises:
        ConfigRefused: A file whose engines this cannot start on one machine.
    """

    def __init__(self, app: CheckedApp) -> None:
        self._app = app
        self._roles = app.roles
        if set(self._roles) != {"prefill", "decode"}:
            raise ConfigRefused(
                "the file is no P/D application", cure="give prefill_config and decode_config"
            )
        self.side_by_side = all(role.on_cpu for role in self._roles.values())

    def of(self, side: Side, chunk_tokens: int | None) -> Sequence[EngineToStart]:
        """The engines of a side, each on GPUs of its own where there are GPUs."""
        found: list[EngineToStart] = []
        for role, spec in self._roles.items():
            source: Literal["prefill", "decode"] = role if side == "disaggregated" else "decode"
            for _ in range(spec.num_replicas):
                found.append(self._one(role, source, side, chunk_tokens, len(found)))
        return found

    def _one(
        self,
        role: Literal["prefill", "decode"],
        source: Literal["prefill", "decode"],
        side: Side,
        chunk_tokens: int | None,
        number: int,
    ) -> EngineToStart:
        spec = self._roles[source]
        kwargs = dict(self._app.args[f"{source}_config"].get("engine_kwargs") or {})
        transfer = kwargs.pop("kv_transfer_config", None)
        if side == "disaggregated" and transfer is not None:
            named = {**transfer, "engine_id": f"{role}-{uuid.uuid4().hex[:8]}"}
            kwargs["kv_transfer_config"] = named
        if chunk_tokens is not None:
            kwargs |= {"max_num_batched_tokens": chunk_tokens, "enable_chunked_prefill": True}
        environment = {**(CPU_ENV if spec.on_cpu else {}), **spec.env_vars}
        if not spec.on_cpu:
            wide = spec.tensor_parallel_size * spec.pipeline_parallel_size
            gpus = range(number * wide, (number + 1) * wide)
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, gpus))
        command = (
            *(sys.executable, "-m", "vllm.entrypoints.openai.api_server"),
            *("--model", spec.model_source, "--served-model-name", spec.model_id),
            *("--host", "127.0.0.1", *arguments(kwargs)),
        )
        return EngineToStart(role, command, environment)

    def facts(self) -> dict[str, Any]:
        """What a report says of them."""
        counts = {name: spec.num_replicas for name, spec in self._roles.items()}
        spec = self._roles["decode"]
        return {
            "engines": f"{sum(counts.values())} vLLM on {'CPU' if spec.on_cpu else 'GPU'}, "
            f"{counts['prefill']}P{counts['decode']}D against {sum(counts.values())} together",
            "model": spec.model_source.rpartition("/")[2],
        }


def arguments(kwargs: Mapping[str, Any]) -> list[str]:
    """Engine arguments as vLLM's command line has them."""
    words: list[str] = []
    for name, value in kwargs.items():
        flag = name.replace("_", "-")
        if value is True:
            words.append(f"--{flag}")
        elif value is False:
            words.append(f"--no-{flag}")
        elif value is not None:
            text = json.dumps(value) if isinstance(value, dict | list) else str(value)
            words += [f"--{flag}", text]
    return words
