"""Prompts of a given length: token ids where the endpoint has a tokenizer, else text.

Blocks with the same name hold the same tokens, also on another endpoint and in another run; a
`salt` makes all of them others, so that no prefix cache remembers the round before.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import httpx

from baton.errors import EndpointUnfit

if TYPE_CHECKING:
    from collections.abc import Mapping

    from baton.bench.traffic import Planned

_STOCK = (
    "the runner who holds the baton looks for the hand of the next one and the crowd counts the "
    "steps between the lines while rain falls on the red track and nobody speaks of the time "
)
_CALIBRATION_WORDS = 400


@dataclass(frozen=True)
class Endpoint:
    """What a load needs to know of where it goes.

    Args:
        url: Base URL without `/v1`.
        model: The model.
        context: Its longest prompt and answer together, where it is told.
        stock: Token ids that prompts are made of; empty where the endpoint has no tokenizer.
        tokens_per_word: Of text, where it has none.
    """

    url: str
    model: str
    context: int | None
    stock: tuple[int, ...] = ()
    tokens_per_word: float = 1.0
    headers: tuple[tuple[str, str], ...] = ()


async def look_at(
    url: str, *, model: str | None = None, headers: Mapping[str, str] | None = None
) -> Endpoint:
    """Ask an endpoint what a load needs to know.

    Raises:
        EndpointUnfit: Nobody is there, or it speaks no OpenAI.
    """
    url = url.rstrip("/").removesuffix("/v1")
    place = f"{url}/v1/models"
    async with httpx.AsyncClient(timeout=30.0, headers=dict(headers or {})) as http:
        try:
            reply = await http.get(place)
            cards = reply.json()["data"]
            card = next(c for c in cards if model is None or c["id"] == model)
            name, context = str(card["id"]), card.get("max_model_len")
        except httpx.HTTPError as exc:
            raise EndpointUnfit(
                f"no endpoint answers: {exc or type(exc).__name__}",
                place=place,
                cure="check the URL, and that the endpoint is up",
            ) from exc
        except StopIteration as exc:
            raise EndpointUnfit(f"the endpoint serves no model {model!r}", place=place) from exc
        except (ValueError, LookupError, TypeError, AttributeError) as exc:
            raise EndpointUnfit(
                f"what answers speaks no OpenAI: status {reply.status_code}, {reply.text[:80]!r}",
                place=place,
                cure="give the base URL of an OpenAI-compatible endpoint",
            ) from exc
        stock = await _stock(http, url, name)
        ratio = 1.0 if stock else await _tokens_per_word(http, url, name)
    return Endpoint(
        url,
        name,
        context if isinstance(context, int) else None,
        stock,
        ratio,
        tuple((headers or {}).items()),
    )


async def _stock(http: httpx.AsyncClient, url: str, model: str) -> tuple[int, ...]:
    """Token ids of ordinary text: vLLM's `/tokenize`, which Baton serves as well."""
    asked = {"model": model, "prompt": _STOCK, "add_special_tokens": False}
    try:
        reply = await http.post(f"{url}/tokenize", json=asked)
        tokens = reply.json()["tokens"] if reply.status_code == httpx.codes.OK else []
        return tuple(sorted({int(token) for token in tokens}))
    except (httpx.HTTPError, ValueError, LookupError, TypeError):
        return ()


async def _tokens_per_word(http: httpx.AsyncClient, url: str, model: str) -> float:
    words = (_STOCK.split() * _CALIBRATION_WORDS)[:_CALIBRATION_WORDS]
    asked = {"model": model, "prompt": " ".join(words), "max_tokens": 1}
    try:
        reply = await http.post(f"{url}/v1/completions", json=asked)
        counted = reply.json()["usage"]["prompt_tokens"]
    except (httpx.HTTPError, ValueError, LookupError, TypeError) as exc:
        raise EndpointUnfit(
            "the endpoint neither tokenizes nor says how many tokens a prompt has",
            place=f"{url}/v1/completions",
            cure="lengths cannot be kept there; measure an endpoint that tells usage",
        ) from exc
    return max(0.1, int(counted) / len(words))


def prompt_of(planned: Planned, endpoint: Endpoint, salt: str) -> list[int] | str:
    """The prompt of a request: as many tokens as were planned (about as many, where it is text)."""
    if endpoint.stock:
        ids: list[int] = []
        for block in planned.blocks:
            # A str seed is hashed by `random` itself, the same in every process.
            chance = random.Random(f"{salt}/{block.name}")  # noqa: S311
            ids += chance.choices(endpoint.stock, k=block.tokens)
        return ids
    words: list[str] = []
    stock = _STOCK.split()
    for block in planned.blocks:
        chance = random.Random(f"{salt}/{block.name}")  # noqa: S311
        words += chance.choices(stock, k=max(1, round(block.tokens / endpoint.tokens_per_word)))
    return " ".join(words)


def job_of(
    planned: list[Planned], endpoint: Endpoint, *, salt: str, run_id: str
) -> list[dict[str, Any]]:
    """The requests in the form that the generator takes."""
    return [
        {
            "id": f"{run_id}-{number}",
            "at_s": request.at_s,
            "prompt": prompt_of(request, endpoint, salt),
            "input_tokens": request.input_tokens,
            "output_tokens": request.output_tokens,
        }
        for number, request in enumerate(planned)
    ]
