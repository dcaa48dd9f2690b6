"""What a request may ask for beyond a prompt: choices, stops, seeds, logprobs, echo."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from baton.conformance.case import Case, Fails, NotOffered, check
from baton.conformance.cases import sources
from baton.conformance.cases.basics import counts
from baton.conformance.probe import LONG

if TYPE_CHECKING:
    from baton.conformance.probe import Probe

_TOKENS = 12
"""What `Probe.asked` asks for by default."""
_TOP = 3
_IDS = 80
_STOP_LEAST = 6
"""A text shorter than this has no middle that a stop string could be taken from."""


async def _n(probe: Probe, *, chat: bool, stream: bool) -> None:
    ask = probe.stream if stream else probe.whole
    one = await ask(chat=chat)
    two = await ask(chat=chat, n=2, temperature=0.8)
    check(set(two.texts) == {0, 1}, f"choices {sorted(two.texts)} with n: 2")
    (prompt, _, _), (both, completion, _) = counts(one), counts(two)
    check(both == prompt, f"{both} prompt tokens for two choices, {prompt} for one")
    check(completion <= 2 * _TOKENS, f"{completion} tokens for two choices of {_TOKENS}")
    probe.see(prompt_tokens=both, indexes=sorted(two.texts))


async def _stop(probe: Probe, *, chat: bool, stream: bool) -> None:
    ask = probe.stream if stream else probe.whole
    free = await ask(chat=chat, max_tokens=24)
    if len(free.text) < _STOP_LEAST:
        raise NotOffered("the model says too little to stop it in the middle")
    half = len(free.text) // 2
    stop = free.text[half : half + 2]
    told = await ask(chat=chat, max_tokens=24, stop=[stop, "no such text", "nor this", "or that"])
    wanted = free.text[: free.text.index(stop)]
    check(stop not in told.text, f"the text holds its stop string {stop!r}")
    check(told.text == wanted, f"the text is {told.text!r}, not {wanted!r}")
    check(told.reasons[0] == "stop", f"finish_reason is {told.reasons[0]!r}")
    probe.see(text=told.text)


async def _seed(probe: Probe, *, chat: bool) -> None:
    first, second = [
        await probe.whole(chat=chat, seed=4711, temperature=1.0, top_p=0.9) for _ in range(2)
    ]
    check(first.text == second.text, f"the same seed gave {first.text!r} and {second.text!r}")
    other = await probe.whole(chat=chat, seed=4712, temperature=1.0, top_p=0.9)
    probe.see(text=first.text, another_seed_differs=other.text != first.text)


async def _chat_logprobs(probe: Probe) -> None:
    told = await probe.whole(logprobs=True, top_logprobs=_TOP, max_tokens=6)
    logprobs = told.chunks[0]["choices"][0].get("logprobs")
    if not isinstance(logprobs, dict) or not isinstance(logprobs.get("content"), list):
        raise Fails(f"logprobs is {logprobs!r:.160}")
    tokens = logprobs["content"]
    used = counts(told)[1]
    # The token that ends an answer has no text; servers differ in whether they list it.
    check(used - 1 <= len(tokens) <= used, f"{len(tokens)} logprobs for {used} tokens")
    for token in tokens:
        check({"token", "logprob", "bytes", "top_logprobs"} <= token.keys(), f"keys: {list(token)}")
        check(token["logprob"] <= 0, f"logprob is {token['logprob']}")
        check(
            len(token["top_logprobs"]) <= _TOP + 1,
            f"{len(token['top_logprobs'])} top_logprobs of 3",
        )
    probe.see(tokens=[token["token"] for token in tokens])


async def _completion_logprobs(probe: Probe) -> None:
    told = await probe.whole(chat=False, logprobs=2, max_tokens=6)
    logprobs = told.chunks[0]["choices"][0].get("logprobs")
    if not isinstance(logprobs, dict):
        raise Fails(f"logprobs is {logprobs!r:.160}")
    names = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
    lengths = {name: len(logprobs.get(name) or ()) for name in names}
    check(len(set(lengths.values())) == 1 and lengths["tokens"], f"lengths differ: {lengths}")
    offsets = logprobs["text_offset"]
    check(offsets == sorted(offsets), f"text_offset goes back: {offsets}")
    probe.see(tokens=logprobs["tokens"])


async def _echo(probe: Probe) -> None:
    told = await probe.whole(chat=False, echo=True, max_tokens=4)
    check(
        told.text.startswith(LONG[:40]),
        f"the text does not begin with the prompt: {told.text[:60]!r}",
    )
    probe.see(text=told.text)


async def _several_prompts(probe: Probe) -> None:
    told = await probe.whole(chat=False, prompt=[LONG, "A second prompt, shorter."])
    check(set(told.texts) == {0, 1}, f"choices {sorted(told.texts)} for two prompts")
    probe.see(texts=[told.texts[0], told.texts[1]], prompt_tokens=counts(told)[0])


async def _token_ids(probe: Probe) -> None:
    told = await probe.whole(chat=False, prompt=[65 + at % 26 for at in range(_IDS)])
    check(counts(told)[0] == _IDS, f"{counts(told)[0]} prompt tokens for {_IDS} token ids")
    probe.see(text=told.text)


async def _penalties(probe: Probe, *, chat: bool) -> None:
    fields: dict[str, Any] = {"presence_penalty": 1.5, "frequency_penalty": 1.5, "top_p": 0.5}
    told = await probe.whole(chat=chat, **fields)
    probe.see(text=told.text)


async def _logit_bias(probe: Probe) -> None:
    told = await probe.whole(chat=False, logit_bias={"66": 100}, max_tokens=4, prompt=LONG)
    free = await probe.whole(chat=False, max_tokens=4, prompt=LONG)
    check(told.text != free.text, "a bias of 100 changed nothing")
    probe.see(text=told.text)


async def _nulls(probe: Probe) -> None:
    told = await probe.whole(
        stop=None, seed=None, n=None, logprobs=None, tools=None, response_format=None, user=None
    )
    probe.see(text=told.text)


async def _user_metadata(probe: Probe) -> None:
    told = await probe.whole(user="user-1", metadata={"a": "b"}, store=False)
    probe.see(text=told.text)


def _both(name: str, says: str, act: Any, *, also_streamed: bool = False) -> tuple[Case, ...]:
    cases = []
    for chat in (True, False):
        area, source = ("chat", sources.CHAT) if chat else ("completions", sources.COMPLETIONS)
        if not also_streamed:
            cases.append(Case(f"{area}.{name}", says, source, partial(act, chat=chat)))
            continue
        for stream in (False, True):
            end = "_streamed" if stream else ""
            cases.append(
                Case(f"{area}.{name}{end}", says, source, partial(act, chat=chat, stream=stream))
            )
    return tuple(cases)


CASES = (
    *_both("n", "`n: 2` makes two choices; usage counts the prompt once", _n, also_streamed=True),
    *_both("stop", "up to four stop strings end the text, and are not part of it", _stop,
           also_streamed=True),
    *_both("seed", "the same seed gives the same text (best effort)", _seed),
    *_both("penalties", "presence and frequency penalties and top_p are taken", _penalties),
    Case("chat.logprobs", "each token with its logprob, its bytes and the likeliest others",
         sources.CHAT_OBJECT, _chat_logprobs),
    Case("completions.logprobs", "tokens, logprobs and offsets, one for each token",
         sources.COMPLETIONS, _completion_logprobs),
    Case("completions.logit_bias", "a bias of 100 makes a token nearly certain",
         sources.COMPLETIONS, _logit_bias),
    Case("completions.echo", "`echo` gives the prompt back before the answer", sources.COMPLETIONS,
         _echo),
    Case("completions.several_prompts", "a list of prompts makes a choice for each",
         sources.COMPLETIONS, _several_prompts),
    Case("completions.token_ids", "a list of token ids is one prompt", sources.COMPLETIONS,
         _token_ids),
    Case("chat.nulls", "null stands for a field that is left out", sources.CHAT, _nulls),
    Case("chat.bookkeeping", "user, metadata and store do not change the answer", sources.CHAT,
         _user_metadata),
)  # fmt: skip
