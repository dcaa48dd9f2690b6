"""The exception tree of Baton.

Every error that a person may see gives fact, place and cure::

    BatonError                     fact, place, cure; exit status
    ├── ConfigRefused              a file that must not start: one or more faults (exit 2)
    ├── EnvironmentUnfit           this machine cannot run what is asked (exit 3)
    │   ├── PortTaken
    │   └── RayUnreachable         no Ray cluster answers at the address
    ├── ModelUnavailable           a model that cannot be read, or fails its checksum
    │   └── ModelNotPlanned        a config that cannot be planned with (exit 2)
    ├── DeployFailed               Ray or an engine did not come up
    │   └── EngineStartFailed
    ├── NotRunning                 nothing of that name runs here
    ├── ChecksFailed               what was asked of an account stands against a change (exit 2)
    ├── FilesInTheWay              files would overwrite what is there, or cannot be written
    ├── DemoFailed                 the scripted first run did not hold
    ├── DrillFailed                something was lost in a drill, or the drill proved nothing
    ├── PlanImpossible             nothing can be planned from what was given
    │   ├── DeviceUnknown          a GPU or instance type that is not in the table
    │   ├── ModelFitsNowhere       no device that was named holds the model
    │   ├── TrafficRefused         a rate and lengths, or a trace, that make no traffic
    │   └── ProfileRefused         a profile that cannot be read, or is of other versions
    ├── MeasurementFailed          an engine that gave no usable times to `baton profile`
    ├── VerifyFailed               a verification could not be made
    ├── EndpointUnfit              no OpenAI-compatible endpoint answers there (exit 2)
    ├── ConformanceFailed          an endpoint does otherwise than the OpenAI API
    ├── TraceRefused               a trace that cannot be read, or is none (exit 2)
    ├── LoadRefused                a trace or traffic that cannot be replayed (exit 2)
    ├── BenchFailed                a measurement that means nothing: errors, or P/D that was none
    └── GatewayError               has an HTTP status and an OpenAI error type
        ├── RequestRefused         400: the caller's request is wrong
        │   ├── MethodRefused      405
        │   ├── BodyTooSlow        408
        │   ├── MediaTypeRefused   415
        │   ├── PromptTooLong      400: more tokens than the limit or the context
        │   └── ResponseGone       404: a stored response whose engine no longer runs
        ├── NotAuthenticated       401
        ├── RouteUnknown           404: not a route that Baton serves
        ├── ModelUnknown           404
        ├── BodyTooLarge           413
        ├── Saturated              429, with Retry-After
        │   └── KeyLimited         429: this key's own limit, however idle the engines are
        ├── EngineFailed           502: a leg broke and nothing could replace it
        │   ├── LegFailed          one call to one engine, with the kind of failure
        │   ├── PrefillFailed      caught by recovery: another prefill engine, or decode alone
        │   ├── DecodeFailed       caught by recovery before the first byte
        │   │   └── BrokenStream   after it: the caller got an error event
        │   └── HandoffRejected    decode did not take the KV that prefill offered
        ├── NoEngineAvailable      503
        ├── ConsoleNotBuilt        503: the console is switched on, and its files are not there
        ├── OverflowFailed         the provider did not answer; the caller gets the local error
        └── DeadlinePassed         504
"""

from __future__ import annotations

from typing import Any, Literal


class BatonError(Exception):
    """Something a person can act on.

    Args:
        fact: What is so, in one line.
        place: Where: `file:line`, a URL, a log file.
        cure: What to do about it.
    """

    exit_status = 1

    def __init__(self, fact: str, *, place: str | None = None, cure: str | None = None) -> None:
        self.fact = fact
        self.place = place
        self.cure = cure
        super().__init__(fact if place is None else f"{fact} ({place})")


class ConfigRefused(BatonError):
    """A configuration that must not start. `fact` holds the first fault and how many more.

    `faults` are all findings of the check, as `baton.spec.faults.Fault`.
    """

    exit_status = 2

    def __init__(
        self,
        fact: str,
        *,
        place: str | None = None,
        cure: str | None = None,
        faults: tuple[Any, ...] = (),
    ) -> None:
        super().__init__(fact, place=place, cure=cure)
        self.faults = faults


class EnvironmentUnfit(BatonError):
    """This machine cannot run what is asked."""

    exit_status = 3


class PortTaken(EnvironmentUnfit):
    """A port that Baton needs belongs to another process."""


class RayUnreachable(EnvironmentUnfit):
    """No Ray cluster answers at the address that was given."""


class ModelUnavailable(BatonError):
    """A model that cannot be read, is incomplete, or fails its checksum."""


class ModelNotPlanned(ModelUnavailable):
    """A model whose config cannot be read, or that writes no text as decoders do."""

    exit_status = 2


class DeployFailed(BatonError):
    """Ray or the application did not come up."""


class ServeEnded(DeployFailed):
    """Ray Serve went away while an application was being deployed."""


class EngineStartFailed(DeployFailed):
    """An engine died or gave up while it started."""


class NotRunning(BatonError):
    """Nothing of that name runs here."""


class ChecksFailed(BatonError):
    """Checks of an account, its quotas or the tools stand against a change. Nothing was changed."""

    exit_status = 2


class FilesInTheWay(BatonError):
    """Files would overwrite what somebody else wrote, or cannot be written."""

    exit_status = 2


class DemoFailed(BatonError):
    """The scripted first run got no answer, or something it checks did not hold."""


class DrillFailed(BatonError):
    """Something was lost in a drill, or the drill proved nothing."""


class VerifyFailed(BatonError):
    """A verification could not be made: not a verdict, so it exits as INCONCLUSIVE does."""

    exit_status = 2


class PlanImpossible(BatonError):
    """Nothing can be planned from what was given."""

    exit_status = 2


class DeviceUnknown(PlanImpossible):
    """A GPU or instance type that is not in the table."""


class ModelFitsNowhere(PlanImpossible):
    """No device that was named holds the model and the KV of one request."""


class TrafficRefused(PlanImpossible):
    """A rate and lengths, or a trace, that make no traffic."""


class ProfileRefused(PlanImpossible):
    """A profile that cannot be read, or was measured with other versions."""


class MeasurementFailed(BatonError):
    """An engine that gave no usable times to `baton profile`."""


class EndpointUnfit(BatonError):
    """Nobody answers there, or what answers is no OpenAI-compatible endpoint."""

    exit_status = 2


class ConformanceFailed(BatonError):
    """An endpoint does otherwise than the OpenAI API, or differs without a known reason."""


class TraceRefused(BatonError):
    """A trace that cannot be read, is none, or has a row that is wrong."""

    exit_status = 2


class LoadRefused(BatonError):
    """A trace, or a description of traffic, that cannot be replayed as it is."""

    exit_status = 2


class BenchFailed(BatonError):
    """A measurement that means nothing: the generator failed, or what it was for did not happen."""


class GatewayError(BatonError):
    """An error that reaches the caller as an OpenAI-shaped answer.

    `status` is the HTTP status, `kind` and `code` fill `error.type` and `error.code`.
    """

    status = 500
    kind = "server_error"
    code: str | None = None
    param: str | None = None

    def __init__(
        self,
        fact: str,
        *,
        place: str | None = None,
        cure: str | None = None,
        param: str | None = None,
        code: str | None = None,
    ) -> None:
        super().__init__(fact, place=place, cure=cure)
        if param is not None:
            self.param = param
        if code is not None:
            self.code = code


class RequestRefused(GatewayError):
    """The caller's request is wrong."""

    status = 400
    kind = "invalid_request_error"


class MethodRefused(RequestRefused):
    """A route that is served, but not with this method."""

    status = 405
    code = "method_not_allowed"


class BodyTooSlow(RequestRefused):
    """The body did not arrive in time."""

    status = 408
    code = "request_timeout"


class MediaTypeRefused(RequestRefused):
    """A body in a form that is not read here."""

    status = 415
    code = "unsupported_media_type"


class PromptTooLong(RequestRefused):
    """The prompt has more tokens than a limit or the context allows, counted by an engine."""

    code = "context_length_exceeded"


class ResponseGone(RequestRefused):
    """A stored response whose engine no longer runs."""

    status = 404
    code = "response_not_found"


class NotAuthenticated(GatewayError):
    """No key, or one that is not known."""

    status = 401
    kind = "invalid_request_error"
    code = "invalid_api_key"


class RouteUnknown(GatewayError):
    """Not a route that Baton serves."""

    status = 404
    kind = "invalid_request_error"
    code = "unknown_url"


class ModelUnknown(GatewayError):
    """Not a model that is served here."""

    status = 404
    kind = "invalid_request_error"
    code = "model_not_found"
    param = "model"


class BodyTooLarge(GatewayError):
    """The request body passes the limit."""

    status = 413
    kind = "invalid_request_error"
    code = "request_too_large"


class Saturated(GatewayError):
    """No capacity now. `retry_after_s` goes into the Retry-After header, in seconds."""

    status = 429
    kind = "rate_limit_error"
    code = "rate_limit_exceeded"

    def __init__(self, fact: str, *, retry_after_s: int = 1, cure: str | None = None) -> None:
        super().__init__(fact, cure=cure)
        self.retry_after_s = retry_after_s


class KeyLimited(Saturated):
    """A limit of the caller's own key. Free engines and overflow do not help."""


class EngineFailed(GatewayError):
    """A leg broke and nothing could replace it."""

    status = 502
    code = "engine_failed"


FailureKind = Literal[
    "refused",  # no connection: nothing listens there
    "unreachable",  # no connection in time: a cut network, or a machine that is gone
    "disconnected",  # the connection broke before the answer's status
    "truncated",  # the answer began and its body broke off
    "timeout",  # no answer in time
    "server_error",  # 5xx
    "busy",  # 429 or 503: the engine takes nothing now
    "unauthorized",  # 401 or 403: the gateway's secret is wrong, not the caller's key
    "no_params",  # prefill answered without KV params
    "error_event",  # a stream with an engine's error in it: the KV load failed, or its core died
    "silent",  # a stream that says nothing more
    "diverged",  # an engine that does not repeat what another has said
    "stale_kv",  # prefill's lease may have ended before decode read the KV
]


class LegFailed(EngineFailed):
    """One call to one engine failed. `failure` says how, `engine` whose `replica_id` it was."""

    def __init__(self, failure: FailureKind, engine: str, detail: str = "") -> None:
        self.failure = failure
        self.engine = engine
        super().__init__(f"The engine failed: {failure}.", place=detail or None)


class PrefillFailed(EngineFailed):
    """The prefill leg refused, died or passed its deadline."""


class DecodeFailed(EngineFailed):
    """The decode leg refused, died or broke off."""


class BrokenStream(DecodeFailed):
    """A stream that broke after its first byte. The caller has been told."""


class HandoffRejected(EngineFailed):
    """Decode did not take the KV that prefill offered."""


class NoEngineAvailable(GatewayError):
    """No engine of the role that is needed is ready."""

    status = 503
    kind = "service_unavailable_error"
    code = "no_engine_available"


class ConsoleNotBuilt(GatewayError):
    """The console's bundle is not where the package should have it."""

    status = 503
    kind = "service_unavailable_error"
    code = "console_not_built"


class OverflowFailed(GatewayError):
    """The overflow provider gave no answer that can be handed on."""

    status = 502
    code = "overflow_failed"


class DeadlinePassed(GatewayError):
    """The request's deadline passed before an answer began."""

    status = 504
    kind = "timeout_error"
    code = "deadline_exceeded"
