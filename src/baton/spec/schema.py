"""The `baton:` block of the YAML, and the values the other rooms work with.

Everything in the block has a default. Units stand in names. Values are frozen: a change is a copy.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

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
    """Whether prefill and decode are done on two engines."""

    mode: Literal["auto", "always", "never"] = "auto"


class Recovery(Frozen):
    """How long a leg may take, and what is tried again."""

    prefill_timeout_s: Seconds = 30.0
    decode_first_byte_timeout_s: Seconds = 60.0
    request_timeout_s: Seconds = 600.0
    max_attempts: Annotated[int, Field(ge=1, le=10)] = 3
    resume_streams: bool = True
    keep_alive_s: Annotated[float, Field(ge=0, le=3600)] = 15.0
    """A streamed answer that is silent for so long gets an SSE comment; 0 for never."""
    stream_idle_timeout_s: Seconds = 60.0
    """A stream whose engine says nothing for so long is resumed elsewhere, or broken off."""


class Admission(Frozen):
    """How much is let in at once, and how large a body may be."""

    max_inflight: Annotated[int, Field(ge=1)] = 256
    max_queue: Annotated[int, Field(ge=0)] = 64
    queue_timeout_s: Seconds = 10.0
    max_body_bytes: Annotated[int, Field(ge=1024)] = 32 * 1024 * 1024


class Auth(Frozen):
    """Keys of callers: the name of an environment variable with one `name:key` or key a comma."""

    api_keys_env: str | None = None


class Overflow(Frozen):
    """An external OpenAI-compatible provider for what this deployment cannot take."""

    base_url: str
    api_key_env: str | None = None
    model: str | None = None
    when: Literal["saturated"] = "saturated"


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


class Logging(Frozen):
    """How Baton's own lines look."""

    format: Literal["json", "text"] = "text"
    level: Literal["debug", "info", "warning", "error"] = "info"


class BatonBlock(Frozen):
    """The `baton:` block: everything in it has a default."""

    transport: Transport = Transport()
    disaggregate: Disaggregate = Disaggregate()
    recovery: Recovery = Recovery()
    admission: Admission = Admission()
    auth: Auth = Auth()
    overflow: Overflow | None = None
    slo: Slo = Slo()
    engines: Engines = Engines()
    gateway: Gateway = Gateway()
    logging: Logging = Logging()
