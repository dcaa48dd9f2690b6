"""The `baton` block alone, for a gateway that runs without Ray.

It stands at the top of a file, or in the only P/D application of a Serve config or of a RayService
manifest. Nothing else in the file is judged: the engines run already.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from baton.errors import ConfigRefused
from baton.spec.check import refusal
from baton.spec.faults import Fault, Path, dotted
from baton.spec.rules.shape import block_findings
from baton.spec.schema import BatonBlock
from baton.spec.typecheck import wrong_type
from baton.spec.view import mapping

if TYPE_CHECKING:
    from collections.abc import Iterator

    from baton.spec.loaded import LoadedFile


def settings_of(loaded: LoadedFile) -> BatonBlock:
    """The block of a file.

    Raises:
        ConfigRefused: When the file cannot be read, has no block or several, or a wrong one.
    """
    blocks = list(_blocks(loaded.document))
    if loaded.document is None:
        raise refusal(loaded.faults)
    if len(blocks) != 1:
        places = ", ".join(str(loaded.place(path)) for path, _ in blocks)
        raise ConfigRefused(
            f"has {len(blocks)} `baton:` blocks ({places})" if blocks else "has no `baton:` block",
            place=loaded.path,
            cure="keep one, in a file of its own" if blocks else "add one, or leave --config",
        )
    path, block = blocks[0]
    key = dotted(path)
    faults = [f for f in loaded.faults if f.severity == "error" and f.key_path.startswith(key)]
    if block is None:
        return BatonBlock()
    if isinstance(block, dict):
        findings = list(block_findings(block, path))
    else:
        findings = [wrong_type({"dict": "any"}, block, path)]
    for found in findings:
        at = loaded.value_place if found.at_value else loaded.place
        place = at(found.path)
        faults.append(
            Fault(
                "BTN-190", "error", found.message, place.file, place.line, place.column,
                dotted(found.path), found.found, found.allowed, found.cure,
            )
        )  # fmt: skip
    if faults:
        raise refusal(tuple(faults))
    return BatonBlock.model_validate(block)


def _blocks(document: Any) -> Iterator[tuple[Path, Any]]:
    if "baton" in mapping(document):
        yield ("baton",), document["baton"]
    applications = mapping(document).get("applications")
    for index, app in enumerate(applications if isinstance(applications, list) else []):
        args = mapping(mapping(app).get("args"))
        if "baton" in args:
            yield ("applications", index, "args", "baton"), args["baton"]
