"""The verb-number classifier that ships with the package, and its word vocabulary.

Given the words before a verb, the model says whether the verb that follows is singular or
plural ("the key to the cabinets" -> singular).  It is the architecture of Abnar and Zuidema
(2020): six pre-LayerNorm GPT-2 blocks without a causal mask, eight heads, width 128, and a
classifier on the last embedding of a leading ``[CLS]`` token.  ``VERB_NUMBER.md`` beside this
file is the model card.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple

import torch
from safetensors.torch import load
from torch import Tensor, nn

from attnflow.errors import ModelError

__all__ = [
    "VerbNumberConfig",
    "VerbNumberModel",
    "VerbNumberOutput",
    "WordVocabulary",
    "load_verb_number",
    "model_from_weights",
    "shape_tag",
    "split_words",
]

PAD: Final = "[PAD]"
UNK: Final = "[UNK]"
CLS: Final = "[CLS]"
EOS: Final = "[EOS]"
MASK: Final = "[MASK]"  # how other models write "a word I do not show you": here it is [UNK]
SPECIAL_TOKENS: Final = (PAD, UNK, CLS, EOS)

# The Penn Treebank tags that stand for rare words in the training data.
POS_TAGS: Final = frozenset([
    "CC", "CD", "DT", "EX", "FW", "IN", "JJ", "JJR", "JJS", "MD", "NN", "NNP", "NNPS", "NNS",
    "PDT", "POS", "PRP", "PRP$", "RB", "RBR", "RBS", "RP", "SYM", "TO", "UH", "VB", "VBD", "VBG",
    "VBN", "VBP", "VBZ", "WDT", "WP", "WP$", "WRB",
])  # fmt: skip

_RESOURCES: Final = "attnflow.models"
_WEIGHTS_FILE: Final = "verb_number.safetensors"
_VOCABULARY_FILE: Final = "verb_number.vocab.txt"


# --- words ------------------------------------------------------------------------------------

_TYPOGRAPHIC: Final = str.maketrans(
    {
        "\u2018": "'",
        "\u2019": "'",
        "\u201c": " `` ",
        "\u201d": " '' ",
        "\u2013": "-",
        "\u2014": " -- ",
        "\u00a0": " ",
    }
)
# A straight quote opens at the start of the text, after a space or after an opening bracket.
_OPENING_QUOTE: Final = re.compile(r'(?:(?<=[\s(\[])|^)"')
_TOKEN: Final = re.compile(
    r"""
      ``|''|--|\.\.\.                      # quotes, dash and ellipsis as the Treebank writes them
    | (?:[^\W\d_]\.){2,}                   # initials: u.s.
    | \d+(?:[.,:/-]\d+)*(?:st|nd|rd|th|s)? # numbers, dates, decades
    | PRP\$|WP\$                           # the two tags that are not plain words
    | [^\W_]+(?:[-'&./][^\W_]+)*           # words, with inner hyphen or apostrophe
    | '(?:s|m|ve|re|d|ll)\b                # a clitic that was split before
    | \S
    """,
    re.VERBOSE | re.IGNORECASE,
)
_BLANK: Final = re.compile(r"(\[UNK\]|\[MASK\])")
_CLITIC: Final = re.compile(r"(.+?)(n't|'s|'m|'ve|'re|'d|'ll)$", re.IGNORECASE)


def split_words(text: str) -> list[str]:
    """Split text into words the way the training data are split, keeping the case.

    The data follow the Penn Treebank: punctuation stands alone, ``'s`` and ``n't`` are words of
    their own, double quotes are written as two backticks or two apostrophes.

    >>> split_words("The dog's bone, isn't")
    ['The', 'dog', "'s", 'bone', ',', 'is', "n't"]
    """
    plain = _OPENING_QUOTE.sub(" `` ", text.translate(_TYPOGRAPHIC)).replace('"', " '' ")
    words: list[str] = []
    for token in _TOKEN.findall(plain):
        clitic = _CLITIC.match(token)
        words.extend(clitic.groups() if clitic else (token,))
    return words


_NUMBER: Final = re.compile(r"\d[\d.,:/-]*(?:st|nd|rd|th)?$", re.IGNORECASE)
_INITIALS: Final = re.compile(r"(?:[^\W\d_]\.){2,}$")
_SUFFIX_TAGS: Final = (
    ("NN", re.compile(r"\w{2,}(?:ness|ment|tion|sion|ship|hood|ism|ity|ogy|ance|ence|ure)$")),
    ("JJ", re.compile(r"\w{2,}(?:ous|ful|ive|less|able|ible|ish|ical|ic|ial|ual|ian)$")),
    ("NN", re.compile(r"\w{2,}(?:ist|er|or|ess|us|is)$")),
    ("RB", re.compile(r"\w{2,}ly$")),
    ("VBG", re.compile(r"\w{2,}ing$")),
    ("VBN", re.compile(r"\w{2,}ed$")),
    ("NNS", re.compile(r"\w{2,}s$")),
)


def shape_tag(word: str, *, sentence_start: bool = False) -> str | None:
    """Guess the tag that would replace a rare word in the training data, from its shape alone.

    Digits make a number; a capital inside the sentence, or initials, make a name; otherwise the
    suffix decides.  The suffix matters most for ``-s``: an unknown plural must not look
    singular.  ``None`` when the shape says nothing.

    >>> shape_tag("1999"), shape_tag("gnomes"), shape_tag("qux")
    ('CD', 'NNS', None)
    """
    if _NUMBER.match(word):
        return "CD"
    if _INITIALS.match(word) or (word[:1].isupper() and not sentence_start):
        return "NNP"
    lower = word.lower()
    return next((tag for tag, suffix in _SUFFIX_TAGS if suffix.match(lower)), None)


@dataclass(frozen=True)
class WordVocabulary:
    """The words the classifier knows; an id is a position in ``tokens``.

    >>> vocabulary = WordVocabulary((*SPECIAL_TOKENS, "the", "key"))
    >>> vocabulary.encode("The key")[1]
    ['[CLS]', 'the', 'key', '[EOS]']
    """

    tokens: tuple[str, ...]
    max_length: int = 64
    ids: Mapping[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        missing = [token for token in SPECIAL_TOKENS if token not in self.tokens]
        if missing:
            raise ValueError(f"the vocabulary lacks {', '.join(missing)}")
        ids = MappingProxyType({token: index for index, token in enumerate(self.tokens)})
        object.__setattr__(self, "ids", ids)

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def pad_id(self) -> int:
        """Id of the token that fills up a batch; the attention mask hides it."""
        return self.ids[PAD]

    @property
    def unk_id(self) -> int:
        """Id of the token for a word whose shape says nothing."""
        return self.ids[UNK]

    @property
    def cls_id(self) -> int:
        """Id of the first token, whose last embedding is classified."""
        return self.ids[CLS]

    @property
    def eos_id(self) -> int:
        """Id of the last token."""
        return self.ids[EOS]

    def encode(self, text: str) -> tuple[list[int], list[str]]:
        """Turn the words before a verb into ids and the tokens to show for them.

        The tokens are ``[CLS]``, the words in lower case, ``[EOS]``. A tag of the training data
        (``NNP``) keeps its case and its meaning; ``[UNK]`` may be written out too, and ``[MASK]``
        means the same. Another word takes the id of the tag its shape suggests (``shape_tag``).

        A sequence longer than the model's positions is a ``ValueError``: a shortened sentence could
        lose its subject.
        """
        words: list[str] = []
        for piece in _BLANK.split(text):
            words += [piece] if piece in (UNK, MASK) else split_words(piece)
        length = len(words) + 2
        if length > self.max_length:
            raise ValueError(
                f"the text makes {length} tokens with {CLS} and {EOS}; "
                f"the model has positions for {self.max_length}"
            )
        ids = [self.cls_id, *self.word_ids(words), self.eos_id]
        return ids, [CLS, *map(self._display, words), EOS]

    def word_ids(self, words: Sequence[str]) -> list[int]:
        """Ids of words that are already split, by the same rule as ``encode``."""
        return [self._word_id(word, sentence_start=index == 0) for index, word in enumerate(words)]

    def _display(self, word: str) -> str:
        reserved = word in (UNK, MASK) or (word in POS_TAGS and word in self.ids)
        return word if reserved else word.lower()

    def _word_id(self, word: str, *, sentence_start: bool) -> int:
        known = self.unk_id if word == MASK else self.ids.get(self._display(word))
        if known is not None:
            return known
        tag = shape_tag(word, sentence_start=sentence_start)
        return self.unk_id if tag is None else self.ids.get(tag, self.unk_id)


# --- model ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class VerbNumberConfig:
    """Sizes of the classifier; the defaults are those of the weights that ship.

    >>> VerbNumberConfig(vocabulary_size=100).layers
    6
    """

    vocabulary_size: int
    positions: int = 64
    width: int = 128
    heads: int = 8
    layers: int = 6
    dropout: float = 0.1


class VerbNumberOutput(NamedTuple):
    """The output of a forward pass.

    >>> VerbNumberOutput(torch.zeros(1, 2), ()).logits.shape
    torch.Size([1, 2])
    """

    logits: Tensor
    """(batch, 2), in the order of ``VerbNumberModel.labels``."""
    attentions: tuple[Tensor, ...]
    """One (batch, heads, tokens, tokens) tensor a layer; empty unless asked for."""


class SelfAttention(nn.Module):
    """Multi-head softmax attention in which every token sees every token that is not padding."""

    def __init__(self, config: VerbNumberConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.query_key_value = nn.Linear(config.width, 3 * config.width)
        self.projection = nn.Linear(config.width, config.width)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, hidden: Tensor, padding: Tensor | None) -> tuple[Tensor, Tensor]:
        batch, length, width = hidden.shape
        split = self.query_key_value(hidden).view(batch, length, 3, self.heads, -1)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
        if padding is not None:
            scores = scores.masked_fill(padding[:, None, None, :], -math.inf)
        weights = torch.softmax(scores, dim=-1)
        # Dropout comes after the weights are kept, so that what is returned sums to one.
        mixed = self.dropout(weights) @ value
        merged = mixed.transpose(1, 2).reshape(batch, length, width)
        return self.projection(merged), weights


class Block(nn.Module):
    """A pre-LayerNorm GPT-2 block: each sublayer adds to the residual stream."""

    def __init__(self, config: VerbNumberConfig) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(config.width)
        self.attention = SelfAttention(config)
        self.mlp_norm = nn.LayerNorm(config.width)
        self.mlp = nn.Sequential(
            nn.Linear(config.width, 4 * config.width),
            nn.GELU(),
            nn.Linear(4 * config.width, config.width),
        )
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, hidden: Tensor, padding: Tensor | None) -> tuple[Tensor, Tensor]:
        mixed, weights = self.attention(self.attention_norm(hidden), padding)
        hidden = hidden + self.dropout(mixed)
        return hidden + self.dropout(self.mlp(self.mlp_norm(hidden))), weights


class VerbNumberModel(nn.Module):
    """Predicts the number of the verb that follows a sequence of words.

    >>> model, vocabulary = load_verb_number()
    >>> ids, _ = vocabulary.encode("the keys to the cabinet")
    >>> model.labels[int(model(torch.tensor([ids])).logits.argmax())]
    'plural'
    """

    labels: Final = ("singular", "plural")

    def __init__(self, config: VerbNumberConfig) -> None:
        super().__init__()
        self.config = config
        self.word_embedding = nn.Embedding(config.vocabulary_size, config.width)
        self.position_embedding = nn.Embedding(config.positions, config.width)
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.final_norm = nn.LayerNorm(config.width)
        self.classifier = nn.Linear(config.width, len(self.labels))
        # GPT-2's scheme: small weights, smaller still where a sublayer joins the stream.
        for name, parameter in self.named_parameters():
            if parameter.dim() >= 2:
                joins = name.endswith(("projection.weight", "mlp.2.weight"))
                share = 1 / math.sqrt(2 * config.layers) if joins else 1.0
                nn.init.normal_(parameter, std=0.02 * share)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        *,
        output_attentions: bool = False,
    ) -> VerbNumberOutput:
        """Classify a (batch, tokens) tensor of ids; the mask is 0 where a token is padding."""
        padding = None if attention_mask is None else attention_mask == 0
        positions = torch.arange(input_ids.shape[1], device=input_ids.device)
        hidden = self.word_embedding(input_ids) + self.position_embedding(positions)
        hidden = self.dropout(hidden)
        attentions: list[Tensor] = []
        for block in self.blocks:
            hidden, weights = block(hidden, padding)
            if output_attentions:
                attentions.append(weights)
        logits = self.classifier(self.final_norm(hidden[:, 0]))
        return VerbNumberOutput(logits, tuple(attentions))


def model_from_weights(weights: Mapping[str, Tensor]) -> VerbNumberModel:
    """Build the model that a set of stored weights belongs to, in eval mode and float32.

    The weights are stored in half precision to keep the package small; they are computed with in
    single precision because CPUs are slow, and attention methods inexact, in half.

    >>> weights = VerbNumberModel(VerbNumberConfig(vocabulary_size=10)).state_dict()
    >>> model_from_weights(weights).config.vocabulary_size
    10
    """
    config = VerbNumberConfig(
        vocabulary_size=len(weights["word_embedding.weight"]),
        positions=len(weights["position_embedding.weight"]),
    )
    model = VerbNumberModel(config)
    model.load_state_dict({name: tensor.float() for name, tensor in weights.items()})
    return model.eval()


def load_verb_number(folder: Path | None = None) -> tuple[VerbNumberModel, WordVocabulary]:
    """Load the classifier that ships with the package, in eval mode, and its vocabulary.

    A folder holds another one, as ``training/verb_number.py`` writes it.

    >>> model, vocabulary = load_verb_number()
    >>> len(model.blocks)
    6
    """
    place: Path | Traversable = resources.files(_RESOURCES) if folder is None else folder
    missing = [n for n in (_WEIGHTS_FILE, _VOCABULARY_FILE) if not place.joinpath(n).is_file()]
    if missing:
        raise ModelError(
            f"The folder {str(folder)!r} holds no verb-number model: {', '.join(missing)} missing. "
            "training/verb_number.py --output FOLDER writes one."
        )
    # Loading overwrites the random initial weights, so a user's seed must not notice them.
    with torch.random.fork_rng(devices=()):
        model = model_from_weights(load(place.joinpath(_WEIGHTS_FILE).read_bytes()))
    text = place.joinpath(_VOCABULARY_FILE).read_text(encoding="utf-8")
    words = tuple(text.removesuffix("\n").split("\n"))
    return model, WordVocabulary(words, model.config.positions)
