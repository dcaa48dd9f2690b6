"""Faults of the text itself, found by `baton.spec.load`, and of the frame around applications."""

from baton.spec.rules.registry import describe

describe(
    "BTN-001",
    "error",
    "the text is not YAML",
    """
    Nothing can be checked before the text can be read. The parser's own words are shown with line
    and column.

    Source: YAML 1.1 as PyYAML reads it, which is what Ray Serve uses.
""",
)
describe(
    "BTN-002",
    "error",
    "a tab in the indentation",
    """
    YAML allows spaces only, in the indentation and between a key and its value. Every tab of the
    indentation is listed.

    Source: YAML 1.1, section 5.5.
""",
)
describe(
    "BTN-003",
    "error",
    "the same key twice",
    """
    YAML readers keep the last of two equal keys and say nothing, so that half of a config has no
    effect.

    Source: PyYAML's `construct_mapping`, used by `serve run` and KubeRay.
""",
)
describe(
    "BTN-004",
    "error",
    "not UTF-8, or a character that YAML forbids",
    """
    Ray reads its files as UTF-8. Control characters come from copying out of terminals and PDFs.

    Source: YAML 1.1, section 5.1.
""",
)
describe(
    "BTN-005",
    "error",
    "aliases that expand without end",
    """
    A few lines of aliases can stand for billions of values, and an alias can contain itself.
    Ordinary anchors and `<<` are fine.

    Source: Baton's own limit, 20,000 values.
""",
)
describe(
    "BTN-006",
    "error",
    "nested too deep",
    """
    More than 60 levels is no config, and readers fail on it with a recursion error.

    Source: Baton's own limit.
""",
)
describe(
    "BTN-007",
    "error",
    "a key that is not a word",
    """
    Keys are plain words here; a list or mapping as a key is a slip of indentation.

    Source: PyYAML cannot hash such keys.
""",
)
describe(
    "BTN-008",
    "error",
    "a tag",
    """
    `!something` asks the reader to build an object. Ray's safe loader refuses it.

    Source: PyYAML `SafeLoader`.
""",
)
describe(
    "BTN-009",
    "error",
    "a file that cannot be read",
    """
    Missing, a directory, without permission, empty, too large, or more than one document.
""",
)
describe(
    "BTN-010",
    "error",
    "a RayService manifest without its Serve config",
    """
    `spec.serveConfigV2` of a KubeRay RayService holds the Serve config as a block of text.

    Source: KubeRay `ray.io_rayservices.yaml`, `serveConfigV2: {type: string}`.
""",
)
describe(
    "BTN-011",
    "error",
    "the indentation is gone",
    """
    Copied from a web page or a chat, YAML loses its leading spaces: every key stands at the left.
    Baton recognises the file by its keys, and `--fix` rebuilds it when they allow one shape only.
""",
)
describe(
    "BTN-012",
    "error",
    "a Serve config that Ray refuses",
    """
    The frame around the applications: unknown keys, names and routes that are taken twice, an
    import path that cannot be one. Ray ignores unknown keys here, which is worse than refusing.

    Source: ray 2.60 `serve/schema.py`, `ServeDeploySchema`, `ServeApplicationSchema`.
""",
)
describe(
    "BTN-013",
    "note",
    "an application that Baton has no rules for",
    """
    Baton knows `baton:build_pd_openai_app` and `ray.serve.llm:build_pd_openai_app` (a dot in place
    of the colon is the same to Ray). Anything else in the file is passed on as it is, unless the
    module is Baton's or Ray's and has no such builder, or has one that takes other arguments.

    Source: ray 2.60 `_common/utils.py`, `import_attr`; `serve/llm/__init__.py`.
""",
)
describe(
    "BTN-014",
    "warning",
    "a number that is read otherwise than it looks",
    """
    To YAML 1.1 `012` is ten and `1:30` is ninety; YAML 1.2 and most people disagree.

    Source: PyYAML, which reads `serve run`'s files, follows https://yaml.org/type/int.html.
""",
)
describe(
    "BTN-015",
    "warning",
    "an invisible or typographic character",
    """
    Web pages, chats and word processors turn spaces into no-break spaces and quotes into curly
    ones. In a word they become part of it; in the indentation they make the text unreadable, which
    is an error.

    Source: YAML 1.1, section 4.1.1: white space is space and tab; quotes are U+0022 and U+0027.
""",
)
describe(
    "BTN-101",
    "error",
    "an unresolved variable",
    """
    `${NAME}` is looked up in the environment. Unset or empty is refused: an empty model name is the
    worst kind of default. `${NAME:-default}` gives one; `$${` is the text `${`. Other forms that a
    shell knows (`${NAME:?…}`) are refused. Under `runtime_env` variables are left to Ray, which
    expands them on the node.

    Source: ray 2.60 `_private/utils.py`, `update_envs`, expands `${NAME}` in env_vars; nothing does
    so anywhere else, so Ray would look for a model called `${MODEL_ID}`.
""",
)
