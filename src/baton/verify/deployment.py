"""The deployment that is verified, as it looks over HTTP through its gateway."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlsplit

import httpx

from baton.errors import NotRunning, VerifyFailed
from baton.spec.transfer import EngineFacts
from baton.verify.evidence import EngineEvidence, Handoff, Raw

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from baton.verify.evidence import Verdict

HANDOFF_TIMEOUT_S = 300.0
RAW_TIMEOUT_S = 400.0
TELL_TIMEOUT_S = 5.0


class Deployment:
    """A gateway's verification routes.

    Args:
        endpoint: Where the application is mounted; `/v1` at its end is taken off.
        api_key: What callers must say, if anything.
        transport: Another transport for httpx, for tests.
    """

    def __init__(
        self,
        endpoint: str,
        api_key: str | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        headers = {} if api_key is None else {"authorization": f"Bearer {api_key}"}
        self.endpoint = endpoint.rstrip("/").removesuffix("/v1")
        self._http = httpx.AsyncClient(
            base_url=self.endpoint,
            headers=headers,
            timeout=HANDOFF_TIMEOUT_S,
            trust_env=False,  # a proxy from the environment does not know this machine
            transport=transport,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._http.aclose()

    async def engines(self) -> list[tuple[str, EngineEvidence]]:
        """Role and evidence of every engine that is ready.

        Raises:
            NotRunning: Nobody answers there.
            VerifyFailed: Something answers that is no gateway of Baton's, or wants a key.
        """
        found = await self._call("GET", "/baton/evidence", None, HANDOFF_TIMEOUT_S)
        engines = []
        for each in found["engines"]:
            lease, facts = each["lease"], each["facts"]
            evidence = EngineEvidence(
                facts=None if facts is None else EngineFacts.model_validate(facts),
                why_no_facts=each["why_no_facts"],
                counts_nixl=each["nixl"] is not None,
                **{
                    name: lease[name]
                    for name in EngineEvidence.model_fields
                    if name in lease and name not in ("facts", "facts_before")
                },
            )
            if not evidence.node:  # a gateway with a fixed list knows no more than the URL
                host = urlsplit(evidence.url).hostname or ""
                evidence = evidence.model_copy(update={"node": host})
            if not evidence.kv_bytes_per_token and evidence.facts is not None:
                sizes = [worker.kv_bytes_per_token for worker in evidence.facts.workers]
                total = sum(sizes) if all(sizes) else 0
                evidence = evidence.model_copy(update={"kv_bytes_per_token": total})
            engines.append((str(lease["role"]), evidence))
        return engines

    async def answer(self, **asked: Any) -> dict[str, Any]:
        """One request through a named pair (`prefill`, `decode`), or on decode (`way: local`)."""
        return await self._call("POST", "/baton/verify/handoff", asked, HANDOFF_TIMEOUT_S)

    async def handoff(self, prefill: str, decode: str, prompt: list[int], salt: str) -> Handoff:
        """One token of a prompt, with its KV from prefill."""
        found = await self.answer(
            prefill=prefill, decode=decode, prompt=prompt, max_tokens=1, cache_salt=salt
        )
        return Handoff.model_validate({**found, "prompt_tokens": len(prompt)})

    async def raw(self, prefill: str, decode: str, backend: str, device: str) -> Raw:
        """A transfer without engines between the places of two; or its `error`."""
        asked = {"prefill": prefill, "decode": decode, "backend": backend, "device": device}
        try:
            found = await self._call("POST", "/baton/verify/raw", asked, RAW_TIMEOUT_S)
        except VerifyFailed as failure:
            return Raw(backend=backend, error=failure.fact)
        return Raw.model_validate(found)

    async def tokens_of(self, model: str, text: str) -> list[int]:
        """A text as token ids, by an engine's own tokenizer, with what it begins a prompt with."""
        found = await self._call(
            "POST", "/tokenize", {"model": model, "prompt": text}, HANDOFF_TIMEOUT_S
        )
        return [int(one) for one in found["tokens"]]

    async def tell(self, verdicts: Sequence[Verdict]) -> bool:
        """Tell the gateway what came out, for its console; whether it wanted to know.

        Of several gateways the one that happens to answer is told.
        """
        told = {"verdicts": [verdict.model_dump(mode="json") for verdict in verdicts]}
        try:
            await self._call("POST", "/baton/verify/verdicts", told, TELL_TIMEOUT_S)
        except (VerifyFailed, NotRunning):  # no console there: the verdicts are the caller's alone
            return False
        return True

    async def _call(
        self, method: str, path: str, body: dict[str, Any] | None, timeout_s: float
    ) -> dict[str, Any]:
        try:
            answer = await self._http.request(method, path, json=body, timeout=timeout_s)
        except httpx.HTTPError as exc:
            raise NotRunning(
                f"no answer of {path}: {type(exc).__name__}",
                place=self.endpoint,
                cure="see that the deployment runs: `baton status`",
            ) from exc
        try:
            found = answer.json()
        except ValueError:
            found = None
        if answer.status_code == httpx.codes.OK and isinstance(found, dict):
            return found
        raise _refused(answer.status_code, found, path, self.endpoint)


def _refused(status: int, said: Any, path: str, endpoint: str) -> VerifyFailed:
    try:
        reason = str(said["error"]["message"])
    except (KeyError, TypeError):
        reason = f"status {status}"
    cure = None
    if status == httpx.codes.UNAUTHORIZED:
        cure = "name the variable that holds a key: --api-key-env NAME"
    elif status == httpx.codes.NOT_FOUND:
        cure = "give the URL of a gateway of Baton's (the endpoint, without /v1/…)"
    return VerifyFailed(f"{path} was refused: {reason}", place=endpoint, cure=cure)
