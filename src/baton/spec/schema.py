"""The `baton:` block of the YAML, and the values the other rooms work with.

Everything in the block has a default. Units stand in names. Values are frozen: a change is a copy.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

Seconds = Annotated[float, Field(gt=0, le=86_400)]
Port = Annotated[int, Field(ge=1, le=65_535)]
Role = Literal["prefill", "decode"]


class Frozen(BaseModel):
    """A value: unknown keys are refused, and nothing changes after it was made."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Transport(Frozen):
    """What the KV transfer must run on. `require: any` accepts what the engines choose."""

    require: Literal["any", "shm", "cuda_ipc", "rdma", "efa", "tcp"] = "any"
    tune: Literal["off", "auto"] = "off"


class Disaggregate(Frozen):
    """Whether prefill and decode are done on two engines; `auto`: where measurements favour it."""

    mode: Literal["auto", "always", "never"] = "auto"
    first_token: Literal["auto", "early", "ordinary"] = "auto"  # noqa: S105 - a token of text
    """Whether a stream's first token leaves from prefill, while KV is handed over. `auto`: where
    the engines say that it changes nothing else (`continues` in their leases). `early`: also where
    engines cannot say, as behind `baton gateway --prefill … --decode …`; whoever sets it vouches
    that they have no reasoning or tool parser and no default or forced limit of answers."""


class Routing(Frozen):
    """How an engine is chosen among those that are ready."""

    prefix_affinity: bool = True
    """Prefer an engine that has computed the prompt's beginning, unless it is much busier. Load
    alone when false: for engines without a prefix cache (`enable_prefix_caching: false`)."""


class Recovery(Frozen):
    """How long a leg may take, and what is tried again."""

    prefill_timeout_s: Seconds = 30.0
    decode_first_byte_timeout_s: Seconds = 60.0
    request_timeout_s: Seconds = 600.0
    max_attempts: Annotated[int, Field(ge=1, le=10)] = 3
    # What `kv_connector_extra_config.kv_lease_duration` of the engines is, where they cannot say it
    # themselves (`baton gateway --prefill … --decode …`). 30 is vLLM's default.
    kv_lease_s: Seconds = 30.0
    resume_streams: bool = True
    keep_alive_s: Annotated[float, Field(ge=0, le=3600)] = 15.0
    """A streamed answer that is silent for so long gets an SSE comment; 0 for never."""
    stream_idle_timeout_s: Seconds = 60.0
    """A stream whose engine says nothing for so long is resumed elsewhere, or broken off."""


class Pool(Frozen):
    """Limits of one phase. None: only the whole gateway's limits hold.

    A request needs a place in each pool it goes through; what is done by decode alone never waits
    for prefill. Prompt tokens are counted by the engine's own `/tokenize`, and only where a limit
    asks for it.
    """

    max_inflight: Annotated[int, Field(ge=1)] | None = None
    max_queue: Annotated[int, Field(ge=0)] | None = None
    max_prompt_tokens_inflight: Annotated[int, Field(ge=1)] | None = None


class Admission(Frozen):
    """How much is let in at once, and how large a body may be. For each gateway replica."""

    max_inflight: Annotated[int, Field(ge=1)] = 256
    max_queue: Annotated[int, Field(ge=0)] = 64
    queue_timeout_s: Seconds = 10.0
    prefill: Pool = Pool()
    decode: Pool = Pool()
    max_prompt_tokens: Annotated[int, Field(ge=1)] | None = None
    max_body_bytes: Annotated[int, Field(ge=1024)] = 32 * 1024 * 1024
    max_body_bytes_held: Annotated[int, Field(ge=1024)] = 1024 * 1024 * 1024
    """All bodies that are being read, wait or run, together."""
    body_timeout_s: Seconds = 60.0

    @model_validator(mode="after")
    def _one_body_fits(self) -> Self:
        if self.max_body_bytes_held < self.max_body_bytes:
            raise ValueError("max_body_bytes_held is less than max_body_bytes: no body would fit")
        return self


class Auth(Frozen):
    """Keys of callers, from a variable, a file, or both. None at all: everybody is let in.

    `api_keys_env` names an environment variable with one `name:key` or key a comma.
    `api_keys_file` is read again when it changes (`baton.spec.key_file` has its form).
    `allow_anonymous: true` lets a gateway without keys listen where others can reach it.
    """

    api_keys_env: str | None = None
    api_keys_file: str | None = None
    allow_anonymous: bool = False

    @property
    def asks_for_keys(self) -> bool:
        """Whether callers need a key."""
        return self.api_keys_env is not None or self.api_keys_file is not None

    @property
    def is_unsaid(self) -> bool:
        """Whether nothing says who may come in: fine on loopback, and refused elsewhere."""
        return not self.asks_for_keys and not self.allow_anonymous

    @property
    def keys_path(self) -> Path | None:
        """`api_keys_file` with `~` expanded."""
        return None if self.api_keys_file is None else Path(self.api_keys_file).expanduser()


class Overflow(Frozen):
    """An external OpenAI-compatible provider for what this deployment cannot take.

    `when`: `saturated` (no place within the hold-off, or a full queue), `unready` (no decode engine
    for longer than the hold-off), or `both`. The provider gets the key in `api_key_env` and never
    the caller's. `models` maps names; `model` stands for all that are not in it.
    """

    base_url: str
    api_key_env: str | None = None
    model: str | None = None
    models: dict[str, str] = Field(default_factory=dict)
    when: Literal["saturated", "unready", "both"] = "saturated"
    hold_off_s: Annotated[float, Field(ge=0, le=86_400)] = 0.0
    max_inflight: Annotated[int, Field(ge=1)] = 32
    timeout_s: Seconds = 60.0
    """Until the provider's answer begins."""
    pass_fields: tuple[str, ...] = ()
    """Fields beyond OpenAI's own that the provider understands, such as `top_k`."""

    def covers(self, what: Literal["saturated", "unready"]) -> bool:
        """Whether this is a reason to ask the provider."""
        return self.when in (what, "both")


class Slo(Frozen):
    """What callers were promised."""

    ttft_s: Seconds | None = None
    tpot_s: Seconds | None = None


class Engines(Frozen):
    """Where engine replicas listen. A replica takes the first free port of the range."""

    port_min: Port = 18_000
    port_max: Port = 18_999
    side_channel_port_min: Port = 20_000
    side_channel_port_max: Port = 20_999
    lease_s: Seconds = 5.0
    drain_timeout_s: Seconds = 60.0


class Gateway(Frozen):
    """How many gateway replicas serve the endpoint."""

    num_replicas: Annotated[int, Field(ge=1, le=1000)] = 1


class Tracing(Frozen):
    """Spans of requests, by OTLP over HTTP (protobuf), to an OpenTelemetry collector.

    `otlp_endpoint`: `http://collector:4318`; with a path it is taken as it stands, else spans go to
    `/v1/traces` there. When it is not set, OpenTelemetry's own variables are looked at:
    OTEL_EXPORTER_OTLP_TRACES_ENDPOINT and OTEL_EXPORTER_OTLP_ENDPOINT. `sample` is the share of
    requests that begin a trace; a caller's own `traceparent` decides for itself.
    """

    otlp_endpoint: str | None = None
    sample: Annotated[float, Field(ge=0, le=1)] = 1.0


class Placement(Frozen):
    """Which nodes of a cluster each phase runs on, by their labels (`baton eks`).

    The labels are Kubernetes' own. Where Baton makes the node groups (`baton eks render`), each
    gets its phase's labels; worker pods of the phase go to such nodes only, and Serve places the
    phase's replicas in those pods only. Left out, each phase has a node group of its own.
    """

    prefill_node_selector: dict[str, str] = Field(default_factory=dict)
    decode_node_selector: dict[str, str] = Field(default_factory=dict)

    def of(self, role: Role) -> dict[str, str]:
        """The selector of one phase."""
        return self.prefill_node_selector if role == "prefill" else self.decode_node_selector


class Console(Frozen):
    """A page at `/console` of the gateway: engines, pairs, phases, recent requests, a chat box.

    The page holds no data. What it shows stands behind the callers' keys, and every key opens it.
    """

    enabled: bool = False


class Logging(Frozen):
    """How Baton's own lines look."""

    format: Literal["json", "text"] = "text"
    level: Literal["debug", "info", "warning", "error"] = "info"


class BatonBlock(Frozen):
    """The `baton:` block: everything in it has a default."""

    transport: Transport = Transport()
    disaggregate: Disaggregate = Disaggregate()
    routing: Routing = Routing()
    recovery: Recovery = Recovery()
    admission: Admission = Admission()
    auth: Auth = Auth()
    overflow: Overflow | None = None
    slo: Slo = Slo()
    engines: Engines = Engines()
    gateway: Gateway = Gateway()
    placement: Placement = Placement()
    console: Console = Console()
    logging: Logging = Logging()
    tracing: Tracing = Tracing()

    @model_validator(mode="before")
    @classmethod
    def _empty_parts_have_their_defaults(cls, value: Any) -> Any:
        # `recovery:` with nothing below it, because all of its lines are comments by now.
        if isinstance(value, dict):
            return {key: part for key, part in value.items() if part is not None or not _known(key)}
        return value


def _known(key: object) -> bool:
    return key in BatonBlock.model_fields
