"""The file of `baton bench compare`: which engines, which traffic, how often.

```yaml
app: app.yaml             # a Serve config; or `engines: simulated`
traffic:
  duration_s: 40
  classes:
  - {name: chat, rate: 4, input: "64", output: "64"}
  - {name: long, rate: 0.5, input: "1500", output: "8"}
slo: {ttft_s: 2.0, tpot_s: 0.05}
rounds: 3
baseline: {chunk_tokens: [2048, 512, 128]}
```
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, ValidationError, model_validator
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from baton.bench import trace
from baton.bench.traffic import Class, Lengths, Planned, poisson
from baton.errors import ConfigRefused
from baton.spec.schema import Frozen, Slo

Positive = Annotated[float, Field(gt=0)]
Tokens = Annotated[int, Field(ge=1)]


class ClassOf(Frozen):
    """Requests of one kind. Lengths: `512`, `256-1024` or `512~128`."""

    name: str
    rate: Positive
    input: str | int
    output: str | int
    prefix_tokens: Annotated[int, Field(ge=0)] = 0
    prefixes: Tokens = 1


class TraceOf(Frozen):
    """A trace instead; paths are beside the file."""

    file: Path
    requests: Tokens | None = None
    max_pause_s: Positive | None = None
    speed: Positive = 1.0


class Traffic(Frozen):
    """What is sent: classes of requests for so long, or a trace."""

    duration_s: Positive = 60.0
    warmup_s: Annotated[float, Field(ge=0)] = 5.0
    seed: int = 1
    classes: tuple[ClassOf, ...] = ()
    trace: TraceOf | None = None

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if bool(self.classes) == (self.trace is not None):
            raise ValueError("give `classes` or `trace`, not both and not neither")
        return self


class SimulatedEngines(Frozen):
    """Latencies of engines without a model; the defaults are those of `baton engine`."""

    prefill_tokens_per_s: Positive = 20_000.0
    tpot_ms: Positive = 10.0
    handoff_gbps: Positive = 10.0
    handoff_fixed_ms: Annotated[float, Field(ge=0)] = 1.0
    max_model_len: Tokens = 8192


class Baseline(Frozen):
    """Sizes of prefill chunks that are tried for the baseline; the engine's own comes first."""

    chunk_tokens: tuple[Tokens, ...] = (2048, 1024, 512, 256)


class CompareFile(Frozen):
    """The whole file."""

    app: Path | None = None
    engines: Literal["simulated"] | None = None
    simulated: SimulatedEngines = SimulatedEngines()
    prefill: Tokens = 1
    """Engines of each role, for simulated ones; a Serve config says its own."""
    decode: Tokens = 1
    traffic: Traffic
    slo: Slo = Slo()
    rounds: Annotated[int, Field(ge=1, le=20)] = 3
    baseline: Baseline = Baseline()

    @model_validator(mode="after")
    def _engines_of_one_kind(self) -> Self:
        if (self.app is None) == (self.engines is None):
            raise ValueError("give `app: FILE` or `engines: simulated`")
        return self

    def planned(self, folder: Path) -> tuple[list[Planned], list[str]]:
        """The requests, and what was done to a trace. Raises LoadRefused."""
        if self.traffic.trace is not None:
            asked = self.traffic.trace
            found = trace.read(
                folder / asked.file,
                requests=asked.requests,
                max_pause_s=asked.max_pause_s,
                speed=asked.speed,
            )
            return found.planned, found.notes
        classes = [
            Class(
                one.rate,
                Lengths.of(str(one.input)),
                Lengths.of(str(one.output)),
                one.prefix_tokens,
                one.prefixes,
                one.name,
            )
            for one in self.traffic.classes
        ]
        duration_s = self.traffic.duration_s + self.traffic.warmup_s
        return poisson(classes, duration_s=duration_s, seed=self.traffic.seed), []


def load(path: Path) -> CompareFile:
    """Read the file. Raises ConfigRefused with the key."""
    try:
        data = YAML(typ="safe").load(path.read_text(encoding="utf-8"))
        return CompareFile.model_validate(data)
    except OSError as exc:
        raise ConfigRefused(f"cannot read the file: {exc.strerror}", place=str(path)) from exc
    except (YAMLError, UnicodeDecodeError) as exc:
        said = str(exc).splitlines()
        raise ConfigRefused(f"not YAML: {said[0]} {said[-1].strip()}", place=str(path)) from exc
    except ValidationError as exc:
        first = exc.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ConfigRefused(
            f"{where or 'the file'}: {first['msg'].removeprefix('Value error, ')}",
            place=str(path),
            cure="examples/05-compare/compare.yaml shows the shape",
        ) from exc
