"""LoRA adapters: refused by name under Baton, checked for agreement under Ray's own application."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from baton.spec.faults import shown
from baton.spec.rules.registry import Finding, rule
from baton.spec.view import mapping

if TYPE_CHECKING:
    from collections.abc import Iterator

    from baton.spec.view import AppView

_REMOTE = re.compile(r"^(s3|gs|abfss|azure)://")


@rule("BTN-165", "error", "LoRA adapters")
def lora(app: AppView) -> Iterator[Finding]:
    """Baton's gateway does not resolve an adapter on both legs yet.

    A request for one would be prefilled by the base model, so `lora_config` is refused by name.

    Ray's own application resolves adapters on both legs and wants the same loading path in both
    roles.

    Source: ray 2.60 `prefill_decode/builder.py`, `_validate_lora_configs`; `llm_config.py`,
    `validate_dynamic_lora_loading_path`.
    """
    prefill, decode = app.roles
    in_decode, in_prefill = decode.config.get("lora_config"), prefill.config.get("lora_config")
    if not app.is_rays:
        for role in app.roles:
            for at, holder in (
                (role.at("lora_config"), role.config),
                (role.engine_at("enable_lora"), role.engine),
                (role.engine_at("lora_modules"), role.engine),
            ):
                if holder.get(at[-1]):
                    yield Finding(
                        at,
                        f"Baton serves no LoRA adapters yet (`{at[-1]}`)",
                        found=str(at[-1]),
                        allowed="the base model",
                        cure="remove it, or merge the adapter into the"
                        " weights; Ray's own import_path serves adapters",
                    )
        if in_decode or in_prefill:
            return
    if (in_decode is None) != (in_prefill is None):
        has, lacks = (decode, prefill) if in_prefill is None else (prefill, decode)
        yield Finding(
            has.at("lora_config"),
            f"`lora_config` is missing for {lacks.role}",
            found="nothing",
            allowed="lora_config in both roles or in none",
            cure="add it to both",
            related=((lacks.role, lacks.path),),
        )
        return
    for role in app.roles:
        source = mapping(role.config.get("lora_config")).get("dynamic_lora_loading_path")
        if isinstance(source, str) and not _REMOTE.match(source):
            yield Finding(
                role.at("lora_config", "dynamic_lora_loading_path"),
                "adapters are loaded from cloud storage only",
                found=source,
                allowed="s3://, gs://, abfss:// or azure://",
                cure="put the adapters into a bucket and name it",
                at_value=True,
            )
    paths = [
        mapping(role.config.get("lora_config")).get("dynamic_lora_loading_path")
        for role in app.roles
    ]
    if paths[0] != paths[1]:
        yield Finding(
            decode.at("lora_config", "dynamic_lora_loading_path"),
            "the roles load adapters from two different places",
            found=shown(paths[1]),
            allowed=shown(paths[0]),
            cure="use the same path in both",
            related=(("prefill", prefill.at("lora_config", "dynamic_lora_loading_path")),),
        )
