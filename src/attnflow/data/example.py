"""The question of the demo, the five documents it is asked over, and the answer that was given.

SmolLM2 wrote and explained the answer: `make example` runs it again. The served page opens on it.
"""

from __future__ import annotations

from pathlib import Path

from attnflow.attribution import Attribution

QUESTION = "How long is the notice to end the agreement?"
MAX_NEW_TOKENS = 32
MODEL = "SmolLM2-135M-Instruct"

_FOLDER = Path(__file__).parent / "example"
_NAMES = ("contract.txt", "faq.txt", "letter.txt", "rules.txt", "minutes.txt")
DOCUMENTS = {name: (_FOLDER / name).read_text(encoding="utf-8") for name in _NAMES}


def example_result() -> Attribution:
    """Return the result of asking SmolLM2, as it was saved."""
    return Attribution.load(_FOLDER / "answer.safetensors")
