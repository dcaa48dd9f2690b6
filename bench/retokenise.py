"""How often text, tokenized again, gives other tokens than those that a model wrote.

The other way to go on with a stream whose engine died: keep no token ids, and tokenize what was
sent so far once it is needed. It goes wrong wherever a model writes other tokens than its tokenizer
would for the same text, and the text does not show it. The model writes answers (greedy, and
sampled at two temperatures); each is cut after every token, as a stream may break there, and
tokenized again.

    python bench/retokenise.py MODEL_FOLDER [ANSWERS] > bench/results/retokenise.json

The committed file: the demo model, two answers to each prompt.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from typing import Any

import torch
import transformers

TOKENS = 48
PROMPTS = (
    "The history of long-distance relay races began",
    "def read_config(path):\n    ",
    "Zutaten für vier Personen:\n- ",
    "Dear Ms. O'Neill,\n\nthank you for",
    "| name | value |\n| --- | --- |\n",
    "https://example.org/",
    "1, 1, 2, 3, 5, 8,",
    "東京は",
)


def main() -> None:
    folder, answers = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 2  # noqa: PLR2004
    torch.manual_seed(7)
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(folder)
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(folder)
    found = {
        "greedy": measure(model, tokenizer, 1, do_sample=False),
        "temperature 0.7": measure(model, tokenizer, answers, do_sample=True, temperature=0.7),
        "temperature 1": measure(model, tokenizer, answers, do_sample=True, temperature=1.0),
    }
    versions = {"transformers": transformers.__version__, "torch": torch.__version__}
    said = {"tokens_per_answer": TOKENS, "prompts": len(PROMPTS), "versions": versions, **found}
    sys.stdout.write(json.dumps(said, indent=1) + "\n")


def measure(model: Any, tokenizer: Any, answers: int, **how: Any) -> dict[str, Any]:
    """Answers to each prompt, cut after every token."""
    cuts = other = held = hidden = 0
    spoilt, took_us = 0, []
    written: list[list[int]] = []
    for prompt in PROMPTS:
        ids = tokenizer(prompt, return_tensors="pt").input_ids.repeat(answers, 1)
        with torch.no_grad():
            out = model.generate(ids, max_new_tokens=TOKENS, min_new_tokens=8, top_k=0, **how)
        written += [row.tolist() for row in out[:, ids.shape[1] :]]
    for row in written:
        end = next((n for n, token in enumerate(row) if token == tokenizer.eos_token_id), len(row))
        row_is_spoilt = False
        for cut in range(1, end + 1):
            began = time.perf_counter()
            text = tokenizer.decode(row[:cut])
            again = tokenizer(text, add_special_tokens=False).input_ids
            took_us.append((time.perf_counter() - began) * 1e6)
            cuts += 1
            if text.endswith("\ufffd"):
                held += 1  # half a character: vLLM would have sent nothing of it
            elif again != row[:cut]:
                other += 1
                row_is_spoilt = True
                hidden += len(again) == cut
        spoilt += row_is_spoilt
    return {
        "answers": len(written),
        "cuts": cuts,
        "half_a_character": held,
        "other_tokens": other,
        "other_tokens_share": round(other / max(1, cuts - held), 4),
        "of_these_as_many_tokens": hidden,
        "answers_with_such_a_cut": spoilt,
        "us_to_decode_and_tokenize": round(statistics.median(took_us), 1),
    }


if __name__ == "__main__":
    main()
