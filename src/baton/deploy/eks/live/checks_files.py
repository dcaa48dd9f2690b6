"""Whether what is to run goes together: memory of the GPUs, image, schemas, keys."""

from __future__ import annotations

import gzip
import json
import re
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

import yaml

from baton.deploy.eks.config import AWS_RAY_LLM_IMAGE
from baton.deploy.eks.live.checks import Verdict, check, need
from baton.deploy.eks.live.facts import Unknown
from baton.deploy.eks.live.image_inside import PLANNED
from baton.deploy.eks.pods import key_file_name, secret_variables
from baton.deploy.eks.render import render
from baton.spec.budget import budgets_of

if TYPE_CHECKING:
    from baton.deploy.eks.layout import Layout
    from baton.deploy.eks.live.facts import Facts

GIB = 1024**3
EXAMPLE_ACCOUNTS = ("111122223333", "123456789012", "000000000000")
_SAYS = re.compile(r"(ray|vllm|nixl)[-_]?v?(\d+\.\d+\.\d+)")
_ACCOUNT = re.compile(r"(\d{12})\.dkr\.ecr\.")
_SHOWN = 3


@check("EKS-109", "a model that the GPUs have no room for", must=False)
def budget(layout: Layout, facts: Facts) -> Verdict:  # noqa: ARG001
    """Weights and at least one sequence of `max_model_len` fit into the memory of a worker's GPUs.

    Known only when the model's config is at hand: in the file's folder, in this machine's cache.
    `baton validate --budget --online` shows the whole of it.

    Source: `baton.spec.budget`.
    """
    roles = budgets_of(layout.app, None)
    if roles is None:
        return Verdict(
            "unknown", "the model's config is not at hand",
            "baton validate --target cluster --budget --online FILE",
        )  # fmt: skip
    said = []
    for role in roles:
        if role.kv_room_bytes is None or role.kv_bytes_of_context is None:
            return Verdict("unknown", f"{role.role}: the room or the context is not known")
        if role.kv_room_bytes < role.kv_bytes_of_context:
            need_gib, room_gib = role.kv_bytes_of_context / GIB, role.kv_room_bytes / GIB
            return Verdict(
                "fail",
                f"{role.role}: a sequence needs {need_gib:.1f} GiB of KV, {room_gib:.1f} are left",
                "lower max_model_len, raise tensor_parallel_size, or take a larger GPU",
            )
        said.append(f"{role.role}: {role.kv_room_bytes / GIB:.1f} GiB for KV")
    return Verdict("pass", ", ".join(said))


@check("EKS-110", "an image whose Ray, vLLM or NIXL is another", must=False)
def image(layout: Layout, facts: Facts) -> Verdict:  # noqa: ARG001
    """What the tag says of Ray, vLLM and NIXL is what the file, the rules and `rayVersion` are for.

    A tag such as `baton:0.1.0-ray2.60.0-gpu` says it; one that does not leaves it unknown here, and
    `baton eks apply` asks the head's pod before anything else is waited for: another Ray, vLLM or
    NIXL ends it there. `baton image check` inside the image proves it before it is pushed. The
    account of an example is refused.
    """
    name = layout.image
    account = _ACCOUNT.search(name)
    if account is not None and account.group(1) in EXAMPLE_ACCOUNTS:
        return Verdict(
            "fail", f"{name} is in an account of AWS' examples",
            "build deploy/image, push it to your own registry, and export IMAGE=…",
        )  # fmt: skip
    tag = name.rpartition("/")[2].partition(":")[2]
    said = dict(_SAYS.findall(tag))
    wrong = [f"{n} {said[n]}, and the files are for {PLANNED[n]}" for n in said
             if said[n] != PLANNED[n]]  # fmt: skip
    if wrong:
        return Verdict(
            "fail", f"the image has {'; '.join(wrong)}", "take an image with the plan's versions"
        )
    if "ray" not in said:
        what = "AWS' container" if name == AWS_RAY_LLM_IMAGE else f"the tag `{tag or 'latest'}`"
        wanted = ", ".join(f"{n} {version}" for n, version in PLANNED.items())
        return Verdict(
            "unknown", f"{what} does not say what is in it; {wanted} are expected, and asked of"
            " the head once it runs", f"docker run --rm --entrypoint pip {name} list",
        )  # fmt: skip
    return Verdict("pass", f"{', '.join(f'{n} {said[n]}' for n in said)}, by its tag")


@cache
def _validators() -> dict[str, Any]:
    import jsonschema  # noqa: PLC0415 - half a second, for this rule alone

    raw = (resources.files("baton.deploy.eks") / "schemas.json.gz").read_bytes()
    snapshot = json.loads(gzip.decompress(raw))
    known = snapshot["kubernetes"]
    found: dict[str, Any] = {
        kind: jsonschema.Draft202012Validator({**schema, "$defs": known["$defs"]})
        for kind, schema in known["kinds"].items()
    }
    found["ClusterConfig"] = jsonschema.Draft7Validator(snapshot["eksctl"])
    found["RayService"] = jsonschema.Draft7Validator(snapshot["rayservice"])
    return found


def schema_errors(files: dict[str, str]) -> tuple[list[str], list[str]]:
    """Where files do not keep to the published schemas, and kinds that no schema is known for."""
    wrong, without = [], []
    for path, text in files.items():
        if not path.endswith(".yaml") or path.startswith("helm/"):
            continue
        for document in yaml.safe_load_all(text):
            kind = document.get("kind", "?")
            validator = _validators().get(kind)
            if validator is None:
                without.append(kind)
                continue
            wrong += [
                f"{path}: {'.'.join(map(str, error.absolute_path))}: {error.message[:160]}"
                for error in validator.iter_errors(document)
            ]
    return wrong, without


@check("EKS-111", "a file that its schema does not take")
def schemas(layout: Layout, facts: Facts) -> Verdict:  # noqa: ARG001
    """The rendered files keep to eksctl's, Kubernetes' and KubeRay's published schemas.

    A misspelt field would be dropped in silence by one and refused by another, half-way through.
    """
    files = render(layout)
    wrong, without = schema_errors(files)
    if wrong:
        return Verdict("fail", "; ".join(wrong[:_SHOWN]), "this is a fault of Baton: report it")
    unseen = sorted({kind for kind in without if kind not in ("Kustomization", "ServiceMonitor")})
    if unseen:
        return Verdict("unknown", f"no schema is known for {', '.join(unseen)}")
    return Verdict("pass", f"{len(files)} files")


@check("EKS-112", "callers' keys that nobody has given")
def keys(layout: Layout, facts: Facts) -> Verdict:
    """Variables that `baton.auth` and `baton.overflow` name are set here, or their secret is there.

    Without the secret no pod starts: CreateContainerConfigError, forty minutes later.
    """
    names, file = secret_variables(layout), key_file_name(layout)
    if not names and file is None:
        return Verdict("pass", "the file names none")
    unset = [name for name in names if name not in facts.environment]
    if file is None and not unset:
        return Verdict("pass", f"{', '.join(names)}: set here")
    settings = layout.settings
    if not isinstance(facts.secret, Unknown) and facts.secret.value:
        return Verdict("pass", f"secret {settings.api_keys_secret} is there")
    if need(facts.secret) or file is None:
        return Verdict(
            "fail", f"{', '.join(unset)} is not set, and there is no secret"
            f" {settings.api_keys_secret}", f"export {unset[0]}=…",
        )  # fmt: skip
    return Verdict(
        "fail", f"there is no secret {settings.api_keys_secret} with {file}",
        f"kubectl -n {settings.namespace} create secret generic {settings.api_keys_secret}"
        f" --from-file={file}=PATH (after `baton eks cluster`)",
    )  # fmt: skip
