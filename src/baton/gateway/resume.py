"""Goes on with a stream whose engine died, from another engine, as if nothing had happened.

`stream.relay` notices that an engine's stream broke and asks here for one that goes on. What comes
back is read like the first one: bytes of whole events, under the id, time and model that the caller
already knows. Which way is possible says `resumable`; what was sent so far says the transcript.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from baton.errors import GatewayError, LegFailed
from baton.gateway.ask import leg_headers
from baton.gateway.journey import Journey
from baton.gateway.prefill import RequestRejected
from baton.gateway.request_body import encode_body
from baton.gateway.resumable import COMPLETING, continuation, means_of
from baton.gateway.routes import COMPLETIONS
from baton.gateway.sources import Continued, Rewritten, Written, find_places, head_of
from baton.gateway.transcript import Transcript, parse_event, write_event
from baton.observe.timeline import Timeline

if TYPE_CHECKING:
    from baton.gateway.ask import Ask, Parts
    from baton.gateway.breaker import Breakers
    from baton.gateway.decode import DecodeAnswer
    from baton.gateway.prompt_usage import PromptUsage
    from baton.gateway.request_body import Body
    from baton.gateway.sources import Place, Source
    from baton.gateway.transcript import Said

log = logging.getLogger("baton.gateway.resume")

How = Literal["restart", "continue", "replay", "finish"]
LOOK_TOKENS = 8
"""So many tokens hold the last character, and the one before it, in any tokenizer."""
MAX_LOOKS = 8
LOOK_S = 5.0
MAX_RESUMES = 20
"""A stream that breaks this often is not going to end well."""


class CannotResume(Exception):
    """Nothing can go on with this stream. The text is the reason."""


class Resumer:
    """One stream's way back. Made with the stream, used when it breaks."""

    def __init__(self, parts: Parts, ask: Ask, timeline: Timeline) -> None:
        body = ask.body or {}
        self._parts, self._ask, self._timeline = parts, ask, timeline
        self._body = body
        self.means = means_of(body, ask.route, ask.why_alone)
        self.keeps = parts.settings.resume_streams and ask.route.path in COMPLETING
        """Whether the stream's transcript is worth keeping: its route can be resumed."""
        self.asks_ids = self.keeps and self.means.continues
        self.transcript = Transcript(
            asks_ids=self.asks_ids, shows_ids=bool(body.get("return_token_ids"))
        )
        self.prompt_usage: PromptUsage | None = None
        """What prefill said of the prompt when it was first read: the stream's own figure."""
        self._journey: Journey | None = None
        self._dead: set[str] = set()
        self._at = -1
        self._fruitless = 0
        self._resumes = 0

    async def resume(self, failed: str, failure: str) -> Source:
        """A source that goes on where the stream broke.

        Args:
            failed: `replica_id` of the engine that died.
            failure: How.

        Raises:
            CannotResume: Nothing can go on with it.
        """
        self.close()
        if failure == "diverged":
            raise CannotResume("another engine did not repeat what was sent")
        self._dead.add(failed)
        self._count_tries()
        started = self._timeline.now()
        how, source = await self._source()
        self._timeline.resumed(how, failed, failure, self._timeline.now() - started)
        self._parts.metrics.resumes.labels(how).inc()
        log.warning(
            "stream resumed",
            extra={
                "request_id": self._timeline.request_id,
                "how": how,
                "failed_engine": failed,
                "failure": failure,
                "engine": source.engine_id,
            },
        )
        return source

    def count_tokens(self) -> None:
        """Note in the timeline how many tokens the stream had, as far as engines have said."""
        transcript = self.transcript
        self._timeline.count_usage(b"".join(list(transcript.tail)[-2:]))
        if self.asks_ids:
            written = transcript.written_count
            self._timeline.completion_tokens = written or self._timeline.completion_tokens

    @property
    def breakers(self) -> Breakers:
        """Told how streams end."""
        return self._parts.directory.breakers

    def close(self) -> None:
        """The stream has ended, or breaks anew."""
        if self._journey is not None:
            self._journey.close()
            self._journey = None

    def _count_tries(self) -> None:
        self._resumes += 1
        self._fruitless = self._fruitless + 1 if self.transcript.count == self._at else 0
        self._at = self.transcript.count
        if self._resumes > MAX_RESUMES or self._fruitless >= self._parts.settings.max_attempts:
            raise CannotResume("it broke again and again")

    async def _source(self) -> tuple[How, Source]:
        transcript = self.transcript
        if not self._parts.settings.resume_streams:
            raise CannotResume("recovery.resume_streams is off")
        if not self.keeps:
            raise CannotResume(self.means.why_not)
        said = transcript.said()
        last = parse_event(transcript.tail[-1]) if transcript.tail else None
        if last is not None and _is_usage(last):
            return "finish", Written([b"data: [DONE]\n\n"])
        if not any(said.values()) and not _finished(last):
            return "restart", await self._again(said)
        if self.means.continues:
            source = await self._continued(last)
            if source is not None:
                return source
        if self.means.replays:
            return "replay", await self._again(said)
        why = self.means.why_not or (
            "a stop string's beginning was held back inside a token, and the text is sampled"
        )
        raise CannotResume(why)

    # -- the same request again ------------------------------------------------------------------

    async def _again(self, said: Said) -> Source:
        answer = await self._open(self._ask)
        if self.prompt_usage is not None:
            answer.prompt_usage = self.prompt_usage
        self.transcript.rewind(0, 0)
        return Rewritten(answer, self.transcript, said)

    # -- prompt and written tokens as the prompt -------------------------------------------------

    async def _continued(self, last: dict[str, Any] | None) -> tuple[How, Source] | None:
        transcript = self.transcript
        prompt, written = transcript.prompt, transcript.written
        if not prompt:
            return None
        if _finished(last):
            return "finish", Written(self._last_events(len(prompt), len(written)))
        place = await self._place(written)
        if place is None:
            return None
        lengths = [e.max_model_len for e in self._parts.directory.decode_engines()]
        body = continuation(
            self._body,
            self._ask.route,
            prompt,
            written[: place.kept],
            max_model_len=min(lengths, default=0),
        )
        if body is None:
            return None
        answer = await self._open(self.continuing(body))
        return "continue", self.go_on(answer, place)

    def continuing(self, body: Body) -> Ask:
        """The request for a `continuation`."""
        return replace(
            self._ask, route=COMPLETIONS, path=COMPLETIONS.path, body=body, streamed=True
        )

    def go_on(self, answer: DecodeAnswer, place: Place) -> Source:
        """Read the answer to a `continuation` as the stream's own, from this place on."""
        if self.prompt_usage is not None:
            answer.prompt_usage = self.prompt_usage
        self.transcript.rewind(place.kept, place.chars)
        chat = self._ask.route.path != COMPLETIONS.path
        return Continued(answer, self.transcript, place, chat=chat)

    async def _place(self, written: list[int]) -> Place | None:
        places = find_places(self.transcript, self._body, greedy=self.means.replays)
        for number, place in enumerate(places):
            if place.sure or await self._is_clean(written[: place.kept]):
                return place
            if number >= MAX_LOOKS:
                break
        return None

    async def _is_clean(self, tokens: list[int]) -> bool:
        """Whether an engine's tokenizer finds no cut character at the end of these tokens."""
        engines = [
            e for e in self._parts.directory.decode_engines() if e.replica_id not in self._dead
        ]
        body = encode_body({"model": self._body.get("model"), "tokens": tokens[-LOOK_TOKENS:]})
        headers = leg_headers(
            self._parts.directory,
            {"content-type": "application/json"},
            f"{self._timeline.request_id}-t",
        )
        for engine in engines[:2]:
            try:
                status, raw = await self._parts.client.fetch(
                    engine, "POST", "/detokenize", timeout_s=LOOK_S, body=body, headers=headers
                )
                text = msgspec.json.decode(raw)["prompt"] if status == 200 else None  # noqa: PLR2004
            except (LegFailed, msgspec.DecodeError, KeyError, TypeError):
                continue
            if isinstance(text, str):
                return not text.endswith("\ufffd")
        return False

    def _last_events(self, prompt_tokens: int, written: int) -> list[bytes]:
        """What is missing of a stream that has said why it ended."""
        events = []
        options = self._body.get("stream_options")
        if isinstance(options, dict) and options.get("include_usage"):
            usage: dict[str, Any] = {
                "prompt_tokens": prompt_tokens,
                "total_tokens": prompt_tokens + written,
                "completion_tokens": written,
            }
            details = None if self.prompt_usage is None else self.prompt_usage.details
            if details is not None:
                usage["prompt_tokens_details"] = details
            head = head_of(self.transcript)
            events.append(write_event({**head, "choices": [], "usage": usage}))
        return [*events, b"data: [DONE]\n\n"]

    async def _open(self, ask: Ask) -> DecodeAnswer:
        timeline = Timeline(self._timeline.request_id, ask.route.path)
        timeline.trace = self._timeline.trace
        journey = Journey(
            self._parts,
            ask,
            timeline,
            avoid=frozenset(self._dead),
            asks_ids=self.asks_ids,
        )
        try:
            answer = await journey.run()
        except (RequestRejected, GatewayError) as exc:
            journey.close()
            why = f"the engine answered {exc.status}" if isinstance(exc, RequestRejected) else exc
            raise CannotResume(f"no engine could go on with it: {why}") from exc
        except BaseException:
            journey.close()
            raise
        finally:
            self._timeline.attempts += timeline.attempts
        self._journey = journey
        self._timeline.decode_engine = answer.engine.replica_id
        return answer


def _is_usage(event: dict[str, Any]) -> bool:
    return event.get("choices") == [] and event.get("usage") is not None


def _finished(event: dict[str, Any] | None) -> bool:
    return event is not None and any(
        choice.get("finish_reason") is not None for choice in event.get("choices") or ()
    )
