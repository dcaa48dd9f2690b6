"""Rewrites a tokenizer so that it loads faster, and changes no token.

A vLLM engine loads its tokenizer three times and copies it once (0.29: renderer, thread pool,
processor, structured outputs), and of what a load takes for Gemma's 262,144 tokens and 514,906
merges, most lies outside the tokenizer: Python parsing 33 MB of indented JSON, and transformers
rebuilding its own class from the vocabulary. So each merge becomes one string, where
`tokenizers` writes a list of two; the indentation goes; and the class is transformers' plain one,
which takes the file as it is.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tokenizers import Tokenizer

if TYPE_CHECKING:
    from pathlib import Path

PLAIN_CLASS = "TokenizersBackend"
"""transformers 5.24: reads `tokenizer.json` as it is (tokenization_utils_tokenizers.py)."""

SAMPLES = (
    "The baton is handed from one runner to the next.",
    "  two spaces,\ttabs\n\n\nand\r\nline ends   ",
    "naïve café, Größe, 東京タワー, Привет, مرحبا, 👩‍👩‍👧‍👦 🏃🏽‍♀️",
    "def f(x):\n    return {'a': [1, 2.5e-3], \"b\": x ** 2}  # ok",
    "<bos><start_of_turn>user\n<unused7><pad>\x00\x1b\ufffd\u200b",
    "3.14159 1,000,000 0x1F 2026-11-30T07:15:00Z",
)


def slim(folder: Path) -> None:
    """Rewrite `tokenizer.json` and the class in `tokenizer_config.json`.

    Raises:
        ValueError: The result cuts a sample otherwise than the original; nothing is written.
    """
    path = folder / "tokenizer.json"
    text = path.read_text(encoding="utf-8")
    data = json.loads(text)
    merges = data["model"].get("merges", [])
    # A space separates the two halves in this form, so none may stand within one.
    if all(isinstance(pair, list) and not any(" " in half for half in pair) for pair in merges):
        data["model"]["merges"] = [" ".join(pair) for pair in merges]
    short = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    check_same(Tokenizer.from_str(text), Tokenizer.from_str(short))
    path.write_text(short, encoding="utf-8")

    config_path = folder / "tokenizer_config.json"
    config = json.loads(config_path.read_text(encoding="utf-8"))
    config["tokenizer_class"] = PLAIN_CLASS
    config_path.write_text(
        json.dumps(config, indent=2, ensure_ascii=False) + "\n", encoding="utf-8"
    )


def check_same(before: Tokenizer, after: Tokenizer) -> None:
    """Compare vocabulary, cuts and decoded text of both.

    Raises:
        ValueError: They differ; says in what.
    """
    if before.get_vocab() != after.get_vocab():
        raise ValueError("the rewritten tokenizer has another vocabulary")
    for sample in SAMPLES:
        ids = before.encode(sample).ids
        if after.encode(sample).ids != ids:
            raise ValueError(f"the rewritten tokenizer cuts {sample!r} otherwise")
        if after.decode(ids) != before.decode(ids):
            raise ValueError(f"the rewritten tokenizer reads the tokens of {sample!r} otherwise")
