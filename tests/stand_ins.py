"""The folder in which the pages' commands and blocks of Python run: what they name is there.

Models that a page names are small ones of the same kind under the printed name, and data are a few
rows. Language models know every word of the pages, and write what the pages say that SmolLM2 does.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import torch
import transformers
from PIL import Image
from tokenizers import Tokenizer, models, pre_tokenizers

from attnflow.data.example import DOCUMENTS
from attnflow.hosts.model import Model
from attnflow.testing import tiny_encoder, tiny_vision_model
from attnflow_experiments.pronouns.data import OURS, PAPERS
from test_documents import write_pdf
from test_pronouns import TABLE

ROOT = Path(__file__).parent.parent
PAGES = [
    ROOT / "README.md",
    *(path for path in sorted((ROOT / "docs").rglob("*.md")) if path.parent.name != "project"),
]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TEXTS = ["the [MASK] to the cabinets", "the author talked to [MASK] about his book"]
CHAT_TEMPLATE = "{% for m in messages %}{{ m['content'] }} {% endfor %}"
WRITTEN = {"from": "Russia", "Russia": "."}  # the word after a word, where a page names it
SIZES = {"hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 48}
WINOGENDER = "".join(TABLE.splitlines(keepends=True)[:7])


def words_of_the_pages() -> list[str]:
    """Return every word of the code of the pages, of the documents and of the experiments."""
    blocks = [body for page in PAGES for _, body in BLOCK.findall(page.read_text("utf-8"))]
    sentences = [str(sentence) for sentence in (*OURS, *PAPERS)]
    texts = [*blocks, *DOCUMENTS.values(), *TEXTS, *sentences, WINOGENDER, "man woman boy girl"]
    return sorted({word for text in texts for word in re.findall(r"\w+|[^\w\s]+", text)})


def small_tokenizer() -> Any:
    """Return a tokenizer of whole words, with a template for conversations."""
    special = ["<pad>", "</s>", "<unk>"]
    vocabulary = {word: i for i, word in enumerate([*special, *words_of_the_pages()])}
    raw = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    raw.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=raw, pad_token="<pad>", eos_token="</s>", unk_token="<unk>"
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def small_writer() -> Model:
    """Build a tiny Llama that writes, and never ends at once."""
    tokenizer = small_tokenizer()
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        **SIZES,
        vocab_size=len(tokenizer),
        num_hidden_layers=2,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=1,
    )
    module = transformers.LlamaForCausalLM(config).eval()
    ids = tokenizer.convert_tokens_to_ids
    module.generation_config.sequence_bias = [
        *([[ids(word), ids(following)], 100.0] for word, following in WRITTEN.items()),
        [[ids("Russia")], -50.0],  # once: a page asks for it by its name
        *([[ids(sign)], -100.0] for sign in ("</s>", "<unk>", "<pad>")),
    ]
    return Model(module, tokenizer)


def small_translator() -> Model:
    """Build a tiny T5."""
    tokenizer = small_tokenizer()
    torch.manual_seed(0)
    config = transformers.T5Config(
        vocab_size=len(tokenizer),
        d_model=16,
        d_kv=8,
        d_ff=32,
        num_layers=2,
        num_heads=2,
        decoder_start_token_id=0,
    )
    return Model(transformers.T5ForConditionalGeneration(config).eval(), tokenizer)


def write_all(folder: Path) -> None:
    """Write every model and every file that a page names."""
    named = {
        "my-model": tiny_encoder(),
        "sst2-minilm": tiny_encoder(head="SequenceClassification"),
        "my-language-model": small_writer(),
        "smollm2": small_writer(),
        "my-translator": small_translator(),
        "vit": tiny_vision_model(),
        "my-vit": tiny_vision_model(),
    }
    for name, model in named.items():
        for part in model:
            part.save_pretrained(folder / name)  # type: ignore[union-attr]
    for place in (folder, folder / "my-demo"):
        place.mkdir(exist_ok=True)
        for name, text in DOCUMENTS.items():
            (place / name).write_text(text, encoding="utf-8")
    _write_texts(folder)
    _write_tables(folder)
    _write_messages(folder)
    _write_images(folder)


def _write_texts(folder: Path) -> None:
    files = {
        "prompt.txt": "the keys to the cabinets are old",
        "answer.txt": "the keys are old",
        "texts.txt": "\n".join(TEXTS),
        "numpred.val": "\n".join(f"VBP\t{text.replace('[MASK]', 'keys')}" for text in TEXTS),
        "dev.tsv": "sentence\tlabel\nthe author talked\t1\nhis book is old\t0\n",
        "winogender.tsv": WINOGENDER,
    }
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    write_pdf(folder / "contract.pdf", [["the keys are old."]])
    (folder / "notes").mkdir()
    (folder / "notes" / "a.md").write_text("the author is here", encoding="utf-8")


def _write_tables(folder: Path) -> None:
    pandas.DataFrame({"text": TEXTS, "label": [0, 1]}).to_csv(folder / "texts.csv", index=False)
    pandas.DataFrame({"review": TEXTS}).to_csv(folder / "reviews.csv", index=False)
    pandas.DataFrame({"id": [1, 2], "text": TEXTS}).to_parquet(folder / "reviews.parquet")
    prefixes = ["the keys to the cabinet", "the author of the books", "the king", "the old city"]
    verbs = ["plural", "singular", "singular", None]
    table = pandas.DataFrame({"id": list("abcd"), "text": prefixes, "verb": verbs})
    table.to_parquet(folder / "prefixes.parquet")
    prompts = [{"prompt": text.replace("[MASK]", "keys"), "completion": " the"} for text in TEXTS]
    rows = {
        "prompts.jsonl": prompts,
        "answers.jsonl": [{"answer": "the keys", "documents": TEXTS}],
        "questions.jsonl": [
            {"question": "the keys are", "context": ["the book of", "her keys"], "answer": "his"}
        ],
    }
    for name, lines in rows.items():
        (folder / name).write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")


def _write_messages(folder: Path) -> None:
    messages: list[dict[str, Any]] = [{"role": "user", "content": "the keys to the cabinets"}]
    (folder / "chat.json").write_text(json.dumps(messages), encoding="utf-8")
    call = {"function": {"name": "forward_file", "arguments": '{"to": "sara"}'}}
    messages += [
        {"role": "tool", "content": "the author is here"},
        {"role": "assistant", "content": "the keys", "tool_calls": [call]},
    ]
    (folder / "transcript.json").write_text(json.dumps(messages), encoding="utf-8")


def _write_images(folder: Path) -> None:
    shutil.copy(ROOT / "docs" / "scene.png", folder)
    (folder / "photos").mkdir()
    noise = np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8)
    for name in ("photo.jpg", "photos/a.png", "red.png"):
        Image.fromarray(noise).save(folder / name)
    (folder / "scenes.csv").write_text("path,label,box\nphoto.jpg,cat,0 0 16 16\n")
    (folder / "images.csv").write_text("path\nred.png\n", encoding="utf-8")
