"""Turns the GGUF file into an ordinary checkpoint: one half, weights or tokenizer, a process.

`python -m baton.demo.convert weights|tokenizer FILE.gguf FOLDER`, called by `baton.demo.model`. It
is a process of its own so that torch's memory goes back to the system, and so that it can be ended
at any moment. The two halves run side by side: both spend their time reading the 262,144 tokens.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from pathlib import Path

import numpy as np

# A base model continues text; a transcript is text that it has seen. The template starts the
# answer's line, and `<bos>` stands here because vLLM adds none to a rendered chat.
CHAT_TEMPLATE = (
    "{{ bos_token }}"
    "{% for message in messages %}"
    "{% if message['role'] == 'system' %}{{ message['content'] }}\n\n"
    "{% elif message['role'] == 'assistant' %}Answer: {{ message['content'] }}\n\n"
    "{% else %}Question: {{ message['content'] }}\n{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}Answer:{% endif %}"
)

_PR_SET_PDEATHSIG = 1


def weights(gguf: Path, folder: Path) -> None:
    """Dequantise to bfloat16 and save as safetensors, with config.json and generation_config."""
    import torch  # noqa: PLC0415
    from transformers import AutoModelForCausalLM, GgufConfig  # noqa: PLC0415

    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent,
        gguf_file=gguf.name,
        quantization_config=GgufConfig(dequantize=True),
        dtype=torch.bfloat16,
    )
    model.save_pretrained(folder)


def tokenizer(gguf: Path, folder: Path) -> None:
    """Save the tokenizer that the file carries, with a chat template, which it does not carry."""
    from transformers import AutoTokenizer  # noqa: PLC0415

    from baton.demo.slim_tokenizer import slim  # noqa: PLC0415

    made = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    made.chat_template = CHAT_TEMPLATE
    made.save_pretrained(folder)
    # transformers 5 puts the template into a file of its own; this is where people look for it.
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    config["chat_template"] = CHAT_TEMPLATE
    path.write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    slim(folder)


def _read_files_whole() -> None:
    """Let this process read files into memory where it would map them.

    gguf 0.19's reader takes millions of small slices of a `numpy.memmap`, and each slice of that
    class runs Python code. With a plain array the tokenizer's half takes 12 CPU-seconds, not 28.
    """

    def read(
        filename: Path, dtype: type[np.generic] = np.uint8, mode: str = "r"
    ) -> np.ndarray[tuple[int], np.dtype[np.generic]]:
        if mode != "r":
            raise ValueError(f"{filename} was to be mapped with mode {mode}")
        return np.fromfile(filename, dtype=dtype)

    np.memmap = read  # type: ignore[assignment, misc]


def _end_with_parent() -> None:
    # prctl(2): a killed `baton` must not leave a conversion running.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() == 1:
        sys.exit(1)


if __name__ == "__main__":
    _end_with_parent()
    _read_files_whole()
    {"weights": weights, "tokenizer": tokenizer}[sys.argv[1]](Path(sys.argv[2]), Path(sys.argv[3]))
