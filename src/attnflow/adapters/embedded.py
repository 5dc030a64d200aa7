"""The models that ship with attnflow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from attnflow.adapters.host import Batch, Recorder
from attnflow.errors import TokensError
from attnflow.models.verb_number import VerbNumberModel, VerbNumberOutput, WordVocabulary
from attnflow.tokens import Tokens
from attnflow.trace import Prediction

__all__ = ["EmbeddedAdapter"]


class EmbeddedAdapter:
    """The verb-number classifier: it returns its attention when asked, so nothing is patched."""

    name = "attnflow's embedded models"

    def recognises(self, model: nn.Module) -> bool:
        """Our own class."""
        return isinstance(model, VerbNumberModel)

    def encode(self, model: nn.Module, tokenizer: Any, texts: Sequence[str]) -> Batch:
        """Words to ids, padded on the right."""
        vocabulary = cast(WordVocabulary, tokenizer)
        encoded = [_encode(vocabulary, text) for text in texts]
        longest = max(len(ids) for ids, _ in encoded)
        rows = [ids + [vocabulary.pad_id] * (longest - len(ids)) for ids, _ in encoded]
        lengths = torch.tensor([[len(ids)] for ids, _ in encoded])
        return Batch(
            {
                "input_ids": torch.tensor(rows),
                "attention_mask": (torch.arange(longest)[None] < lengths).long(),
            },
            tuple(Tokens(tuple(words)) for _, words in encoded),
            tuple(tuple(range(len(ids))) for ids, _ in encoded),
        )

    def wrap(self, model: nn.Module, tokenizer: Any, inputs: Mapping[str, Tensor]) -> Batch:
        """Only texts: the vocabulary's rule for unknown words cannot be undone."""
        raise TokensError("The embedded model takes a text, not prepared inputs.")

    def run(self, model: nn.Module, inputs: Mapping[str, Tensor], recorder: Recorder) -> Any:
        """The model's own switch for attention."""
        output: VerbNumberOutput = model(**inputs, output_attentions=True)
        for weights in output.attentions:
            recorder.add(weights)
        return output

    def layer_count(self, model: nn.Module) -> int | None:
        """Six."""
        return len(cast(VerbNumberModel, model).blocks)

    def predictions(
        self, model: nn.Module, tokenizer: Any, outputs: Any, batch: Batch
    ) -> list[Prediction | None]:
        """The number of the verb, read from the first position, [CLS]."""
        labels = cast(VerbNumberModel, model).labels
        said: list[Prediction | None] = []
        for row in outputs.logits.softmax(dim=-1).tolist():
            ranked = sorted(zip(labels, row, strict=True), key=lambda pair: -pair[1])
            said.append(Prediction(ranked[0][0], ranked[0][1], 0, tuple(ranked)))
        return said


def _encode(vocabulary: WordVocabulary, text: str) -> tuple[list[int], list[str]]:
    try:
        return vocabulary.encode(text)
    except ValueError as error:
        raise TokensError(f"The embedded model cannot take this text: {error}") from error
