"""Every kind of number attnflow computes, on fixed inputs: a rewrite is held against them.

    python tests/same_numbers.py write numbers.npz      before the rewrite
    python tests/same_numbers.py compare numbers.npz    after it: every array, bit for bit

Bits depend on the machine's arithmetic, so the file is made anew on each machine, and is not kept.
Everything runs on models that are tiny or shipped, on one thread, in under two minutes.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
import torch
import transformers
from numpy.typing import NDArray

import attnflow
from attnflow import corpus
from attnflow.testing import random_trace, tiny_encoder, tiny_vision_model

Array = NDArray[Any]
TEXTS = ("the key to the cabinets", "the senators near the old mill")
SENTENCES = (
    "the key to the cabinets is sara . the author talked about her book .",
    "the thing",
    "the author of the book and the keys\n\nthe cabinets are sara . he talked to her .",
)
PAIRS = (("the keys to the", "cabinets are"), ("the author . the book of", "sara is her"))
DOCUMENTS = {
    "a.txt": "the keys to the cabinets . sara talked .",
    "b.txt": "the author is her book .",
}
TIMES = ("seconds", "capture", "elapsed", "duration")
VERSIONS = (
    "attnflow",
    "transformers",
    "torch",
    "numpy",
    "version",
    "versions",
    "request",
    "data",
    "tokenizer",
    "weights",
    "model",
)  # of the machine or of the run, not of the result


# --- values of every shape as arrays --------------------------------------------------------------


def arrays_of(name: str, result: Any) -> Iterator[tuple[str, Array]]:
    """What a result holds."""
    for part in ("values", "lower", "upper", "saturated", "elsewhere"):
        array = getattr(result, part)
        if array is not None:
            yield f"{name}/{part}", np.asarray(array)


def leaves(name: str, value: Any) -> Iterator[tuple[str, Array]]:
    """A JSON document: every list of plain values as an array, by the path that leads to it."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if key not in TIMES and key not in VERSIONS:
                yield from leaves(f"{name}/{key}", inner)
    elif isinstance(value, (list, tuple)):
        if any(isinstance(inner, (Mapping, list, tuple)) for inner in value):
            for number, inner in enumerate(value):
                yield from leaves(f"{name}/{number}", inner)
        else:
            yield name, plain_array(value)
    else:
        yield name, plain_array([value])


def plain_array(values: Sequence[Any]) -> Array:
    """Numbers as they are (None is nan), all else as text."""
    if all(value is None or isinstance(value, (bool, int, float)) for value in values):
        return np.array([np.nan if value is None else float(value) for value in values])
    return np.array([str(value) for value in values], dtype=np.str_)


def writer() -> Any:
    """A tiny Llama that spells every text here, and writes as many tokens as it is asked for."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    spelling = pre_tokenizers.ByteLevel(add_prefix_space=False)
    known = " ".join((*TEXTS, *SENTENCES, *(t for pair in PAIRS for t in pair)))
    known += "\n\nQuestion: the\nAnswer: " + "\n\n".join(DOCUMENTS.values()) + " of sara book"
    words = sorted(
        {piece for piece, _ in spelling.pre_tokenize_str(known)} | {"the", "sara", "book"}
    )
    vocabulary = {word: k for k, word in enumerate(["<pad>", "</s>", "<unk>", *words])}
    raw = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    raw.pre_tokenizer, raw.decoder = spelling, decoders.ByteLevel()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=raw, pad_token="<pad>", eos_token="</s>", unk_token="<unk>"
    )
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=len(vocabulary),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=48,
        max_position_embeddings=256,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=None,
    )
    model = transformers.LlamaForCausalLM(config).eval()
    with torch.no_grad():  # sharper than a fresh model: rows that differ
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.mul_(6)
    return attnflow.load(model, tokenizer=tokenizer)


def vision() -> Any:
    """The tiny vision transformer with its processor in its place."""
    loaded = tiny_vision_model()
    return attnflow.load(loaded.module, processor=loaded.processor or loaded.tokenizer)


# --- arrays, without a model ----------------------------------------------------------------------


def traces() -> Iterator[tuple[str, Any]]:
    """Random attention of every kind: bidirectional, causal, one head, one layer, deep."""
    for seed, (layers, heads, n, causal) in enumerate(
        [(1, 1, 3, False), (3, 2, 7, False), (6, 4, 12, False), (4, 3, 9, True), (10, 2, 8, True)]
    ):
        shape = "causal" if causal else "dense"
        yield f"trace{seed}", random_trace(layers, heads, n, seed=seed, shape=shape)


def plain_methods(causal: bool) -> list[Any]:
    """Settings that need nothing beside weights."""
    common: list[Any] = [
        attnflow.Raw(),
        attnflow.Rollout(),
        attnflow.Rollout(residual=None, heads="max"),
        attnflow.Rollout(residual="one-step", drop=(0,)),
        attnflow.Rollout(heads=0, discard=0.3, start_layer=1),
        attnflow.Flow(),
        attnflow.Flow(residual=0.3, normalized=True, tolerance=0.01),
    ]
    if causal:
        fields = ("column", "element", "uniform-baseline")
        common += [attnflow.Rollout(receptive_field=name) for name in fields]
    return common


def on_arrays() -> Iterator[tuple[str, Array]]:
    """Methods and derived results on random traces."""
    for name, trace in traces():
        for k, method in enumerate(plain_methods(trace.kind == "causal")):
            result = method(trace)
            yield from arrays_of(f"{name}/{k}-{method.name}", result)
            yield from arrays_of(f"{name}/{k}-{method.name}/sum", result.normalize("sum"))
            yield from arrays_of(f"{name}/{k}-{method.name}/max", result.normalize("max"))
            yield from arrays_of(f"{name}/{k}-{method.name}/mean", result.mean_over_layers())
            yield from arrays_of(f"{name}/{k}-{method.name}/span", result.spans({"a": (0, 2)}))
            yield from arrays_of(f"{name}/{k}-{method.name}/row", method(trace, targets=[1, 0]))
        if trace.length <= 9:
            yield from arrays_of(f"{name}/shapley-flow", attnflow.ShapleyFlow()(trace))
        cut = attnflow.Flow().minimum_cut(trace, target=trace.length - 1, source=0)
        yield f"{name}/cut", np.array([cut.value, *(edge.capacity for edge in cut.edges)])


# --- the front functions --------------------------------------------------------------------------


def explain(model: Any, text: Any, method: Any = None, **options: Any) -> Any:
    """Explain a text or an image."""
    return attnflow.explain(model, text, method, **options)


def generate(model: Any, prompt: Any, **options: Any) -> Any:
    """Continue a prompt."""
    return attnflow.generate(model, prompt, **options)


def read_completion(model: Any, prompt: Any, completion: Any, **options: Any) -> Any:
    """Explain a completion that is there already."""
    return attnflow.generate(model, prompt, completion=completion, **options)


def ask(model: Any, question: str, documents: Any, **options: Any) -> Any:
    """Answer a question from documents."""
    return attnflow.ask(model, question, documents, **options)


def evaluate_texts(model: Any, texts: Sequence[str], journal: Path, **options: Any) -> Any:
    """Evaluate on texts of a classifier or a masked language model."""
    return attnflow.evaluate(model, texts, journal=journal, **options)


def evaluate_prompts(model: Any, prompts: Sequence[str], journal: Path, **options: Any) -> Any:
    """Evaluate on prompts of a language model."""
    subject = attnflow.evaluation.Prompts(**options)
    return attnflow.evaluate(model, prompts, subject=subject, journal=journal)


def evaluate_images(model: Any, images: Sequence[Any], journal: Path, **options: Any) -> Any:
    """Evaluate on images of a vision model."""
    return attnflow.evaluate(model, images, journal=journal, **options)


def run_corpus(model: Any, data: Path, output: Path, **options: Any) -> Any:
    """Explain a corpus in this process."""
    return corpus.run(model, data, output, settings=corpus.Settings(**options))


def served_models(folders: Mapping[str, Path]) -> list[Any]:
    """What the server offers: the embedded classifier and these folders."""
    from attnflow_connect.server.models import embedded_models, named_models

    return [embedded_models()[0], *named_models([str(path) for path in folders.values()])]


def run_command(arguments: Sequence[str]) -> str:
    """What a command prints."""
    from typer.testing import CliRunner

    from attnflow.cli.app import app

    outcome = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert outcome.exit_code == 0, outcome.output
    return outcome.stdout


# --- models ---------------------------------------------------------------------------------------


def on_models() -> Iterator[tuple[str, Array]]:
    """Captures with everything beside the weights, by the embedded model and tiny encoders."""
    embedded = attnflow.load()
    masked = tiny_encoder()
    classifier = tiny_encoder("roberta", head="SequenceClassification")
    tagger = tiny_encoder("distilbert", head="TokenClassification")
    cases = [
        *((embedded, text) for text in TEXTS),
        (masked, "one [MASK] three"),
        (classifier, "the author talked to sara"),
        (tagger, "the author talked to sara"),
    ]
    for k, (loaded, text) in enumerate(cases):
        for method in (
            *("raw", "rollout", "flow", "gradient-rollout", "gradient-flow", "gradient-attention"),
            *("measured-residual", "norm-rollout", "alti", "value-zeroing", "shapley-flow"),
        ):
            targets = [1, 3] if method == "shapley-flow" else "all"
            result = explain(loaded, text, method, targets=targets)
            yield from arrays_of(f"model{k}/{method}", result)
            if result.prediction is not None:
                yield f"model{k}/{method}/prediction", np.array([result.prediction.probability])
            yield from arrays_of(f"model{k}/{method}/words", result.merge_words())
        yield from arrays_of(f"model{k}/default", explain(loaded, text))
    for k, method in enumerate(("gradient-rollout", "gradient-attention", "gradient-flow")):
        result = explain(tagger, "the author talked to sara", method, targets=["author", "sara"])
        yield from arrays_of(f"tagger/{k}", result)
        result = explain(classifier, "the key", method, answer=1, contrast=0)
        yield from arrays_of(f"contrast/{k}", result)


def on_decoders() -> Iterator[tuple[str, Array]]:
    """A causal model explained at its last position, and what runs it again."""
    loaded = writer()
    for method in (None, "rollout", "gradient-rollout", "leave-one-out", "careful"):
        result = explain(loaded, "the keys to the cabinets of sara", method)
        yield from arrays_of(f"decoder/{method or 'default'}", result)
    result = explain(loaded, "the keys to the cabinets of sara")
    yield from leaves("decoder/check", result.to_dict()["verdicts"])


def on_images() -> Iterator[tuple[str, Array]]:
    """A tiny vision transformer, and a tiny vision-language model."""
    from vision_families import VISION_FAMILIES

    loaded = vision()
    for k, image in enumerate(images()):
        for method in (None, "rollout", "raw", "gradient-rollout", "alti", "norm-rollout"):
            yield from arrays_of(f"image{k}/{method or 'default'}", explain(loaded, image, method))
    for family in VISION_FAMILIES[:3]:
        model, inputs = family.build()
        for method in (None, "rollout", "gradient-attention"):
            result = attnflow.explain(model, inputs, method)
            yield from arrays_of(f"towers/{family.name}/{method or 'default'}", result)


def images() -> list[Array]:
    """Three images of noise."""
    rng = np.random.default_rng(0)
    return list(rng.integers(0, 256, (3, 32, 32, 3), dtype=np.uint8))


def on_completions() -> Iterator[tuple[str, Array]]:
    """What a tiny Llama and GPT-2 write, streamed and after the fact."""
    sizes = {"vocab_size": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": None}
    llama = transformers.LlamaConfig(
        hidden_size=32,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=48,
        max_position_embeddings=64,
        **sizes,
    )
    gpt2 = transformers.GPT2Config(n_embd=32, n_layer=3, n_head=4, n_positions=64, **sizes)
    for kind, config in (
        (transformers.LlamaForCausalLM, llama),
        (transformers.GPT2LMHeadModel, gpt2),
    ):
        torch.manual_seed(0)
        loaded = kind(config).eval()
        inputs = {"input_ids": torch.tensor([[1, 5, 6, 7, 8, 9, 10, 11]])}
        fields = "discard=0.0, drop={}, receptive_field=None, start_layer=1, top_head=None"
        methods: dict[str, Any] = {
            **dict.fromkeys(("None", "raw", "gradient-rollout", "flow")),
            f"Rollout(heads='mean', residual=0.5, {fields.format(())})": attnflow.Rollout(),
            f"Rollout(heads='mean', residual='one-step', {fields.format((0,))})": attnflow.Rollout(
                residual="one-step", drop=(0,)
            ),
        }
        for label, method in methods.items():
            name = f"{kind.__name__}/{label}"
            if method is None and label != "None":
                method = label
            result = generate(loaded, inputs, max_new_tokens=7, method=method)
            yield from arrays_of(f"{name}/streamed", result)
            ids = [int(text) for text in result.targets.texts]
            yield f"{name}/ids", np.array(ids)
            after = read_completion(loaded, inputs, ids, method=method)
            yield from arrays_of(f"{name}/after", after)


def on_texts_written() -> Iterator[tuple[str, Array]]:
    """generate() with its options, on a model with words."""
    loaded = writer()
    prompt = "the keys to the cabinets of sara"
    cases: dict[str, Any] = {
        "default": {},
        "all": {"sources": "all"},
        "spans": {"sources": {"first": (0, 3), "rest": (3, 7)}, "method": "rollout"},
        "answer": {"targets": "answer"},
        "tokens": {"targets": [0, 2], "method": "gradient-rollout"},
        "contrast": {"targets": [0], "contrast": " book"},
        "loo": {"method": "leave-one-out"},
        "careful": {"method": "careful"},
    }
    for name, options in cases.items():
        result = generate(loaded, prompt, max_new_tokens=5, **options)
        yield from arrays_of(f"written/{name}", result)
    result = generate(loaded, prompt, max_new_tokens=5)
    yield from leaves("written/check", result.to_dict()["verdicts"])
    several = generate(loaded, [prompt, "the author"], max_new_tokens=4)
    for k, result in enumerate(several):
        yield from arrays_of(f"written/several{k}", result)


def on_answers() -> Iterator[tuple[str, Array]]:
    """ask(), with and without leaving documents out."""
    loaded = writer()
    for name, options in {
        "default": {},
        "rollout": {"method": "rollout"},
        "leave-one-out": {"method": "leave-one-out"},
    }.items():
        answer = ask(loaded, "the keys", DOCUMENTS, max_new_tokens=4, **options)
        yield from arrays_of(f"ask/{name}", answer.result)
        record = answer.to_dict()
        record.pop("result")
        yield from leaves(f"ask/{name}", record)


# --- evaluation -----------------------------------------------------------------------------------


def journal_arrays(name: str, journal: Path) -> Iterator[tuple[str, Array]]:
    """The records of a journal; its first line holds the settings."""
    for line in journal.read_text(encoding="utf-8").splitlines()[1:]:
        record = json.loads(line)
        yield from leaves(f"{name}/{record['number']}", record)


def on_evaluation(folder: Path) -> Iterator[tuple[str, Array]]:
    """Methods held against what models use: texts, prompts and images."""
    journal = folder / "texts.jsonl"
    evaluate_texts(attnflow.load(), list(TEXTS), journal, methods=["raw", "rollout", "alti"])
    yield from journal_arrays("evaluation/embedded", journal)
    journal = folder / "masked.jsonl"
    classifier = tiny_encoder(head="SequenceClassification")
    evaluate_texts(classifier, list(SENTENCES), journal)
    yield from journal_arrays("evaluation/classifier", journal)
    for level in ("word", "sentence"):
        journal = folder / f"prompts-{level}.jsonl"
        evaluate_prompts(
            writer(),
            list(SENTENCES),
            journal,
            level=level,
            ablations=8,
            max_new_tokens=3,
            curves=True,
        )
        yield from journal_arrays(f"evaluation/prompts-{level}", journal)
    journal = folder / "images.jsonl"
    evaluate_images(vision(), images(), journal)
    yield from journal_arrays("evaluation/images", journal)


# --- corpora --------------------------------------------------------------------------------------


def corpus_arrays(name: str, result: Any) -> Iterator[tuple[str, Array]]:
    """The rows of a result: a column an array, the sources flattened."""
    rows = result.to_arrow().to_pylist()
    columns: dict[str, list[Any]] = {}
    for row in rows:
        for column, value in row.items():
            if column == "sources":
                for source in value or ():
                    for key, inner in source.items():
                        columns.setdefault(f"sources.{key}", []).append(inner)
            elif isinstance(value, list):
                columns.setdefault(column, []).extend([*value, None])
            else:
                columns.setdefault(column, []).append(value)
    for column, values in columns.items():
        yield f"{name}/{column}", plain_array(values)


def on_corpora(folder: Path) -> Iterator[tuple[str, Array]]:
    """Every level and kind of target, for texts, completions and images."""
    texts = folder / "texts.jsonl"
    texts.write_text("".join(json.dumps({"text": text}) + "\n" for text in SENTENCES))
    embedded = folder / "embedded.txt"
    embedded.write_text("\n".join(TEXTS) + "\n")
    pairs = folder / "pairs.jsonl"
    pairs.write_text("".join(json.dumps({"prompt": p, "completion": c}) + "\n" for p, c in PAIRS))
    prompts = folder / "prompts.jsonl"
    prompts.write_text(
        "".join(
            json.dumps({"prompt": p, "documents": list(DOCUMENTS.values())}) + "\n"
            for p, _ in PAIRS
        )
    )
    kinds = {
        "classifier": tiny_encoder(head="SequenceClassification"),
        "tagger": tiny_encoder(head="TokenClassification"),
        "decoder": writer(),
    }
    cases: list[tuple[str, Any, Path, dict[str, Any]]] = [
        ("embedded", attnflow.load(), embedded, {"methods": ["rollout", "alti"], "values": True}),
        ("embedded-default", attnflow.load(), embedded, {"values": True}),
    ]
    for level in ("token", "word", "sentence", "document"):
        for kind, loaded in kinds.items():
            methods = ["rollout", "flow", "gradient-rollout", "gradient-attention"]
            cases.append((f"{kind}-{level}", loaded, texts, {"level": level, "methods": methods}))
        options = {"level": level, "values": True}
        cases.append(
            (
                f"pairs-{level}",
                kinds["decoder"],
                pairs,
                {**options, "methods": ["rollout", "gradient-attention"]},
            )
        )
        cases.append(
            (f"prompts-{level}", kinds["decoder"], prompts, {**options, "max_new_tokens": 3})
        )
    for targets in ("all", [2], ["the"]):
        for kind, loaded in kinds.items():
            options = {"targets": targets, "methods": ["rollout", "raw"], "layers": 1}
            cases.append((f"{kind}-{targets}", loaded, texts, options))
    for name, loaded, data, options in cases:
        result = run_corpus(loaded, data, folder / name, shard_size=2, **options)
        yield from corpus_arrays(f"corpus/{name}", result)
    yield from corpus_arrays("corpus/images", corpus_of_images(folder))


def corpus_of_images(folder: Path) -> Any:
    """Images by their paths, on a vision model in a folder."""
    from PIL import Image

    rows = []
    for k, image in enumerate(images()):
        path = folder / f"{k}.png"
        Image.fromarray(image).save(path)
        rows.append({"image": str(path)})
    table = folder / "images.jsonl"
    table.write_text("".join(json.dumps(row) + "\n" for row in rows))
    model = vision()
    saved = folder / "vit"
    model.module.save_pretrained(saved)
    model.processor.save_pretrained(saved)
    module = type(model.module).from_pretrained(saved).eval()
    options: Any = {"methods": ["rollout", "gradient-attention"], "values": True}
    return run_corpus(module, table, folder / "images", **options)


# --- the page and the report ----------------------------------------------------------------------


def save_models(folder: Path) -> dict[str, Path]:
    """The tiny models as folders, for doors that take names."""
    paths = {}
    for name, loaded in {
        "classifier": tiny_encoder(head="SequenceClassification"),
        "decoder": writer(),
        "vision": vision(),
    }.items():
        paths[name] = folder / name
        for part in (loaded.module, loaded.tokenizer, loaded.processor):
            if part is not None:
                part.save_pretrained(paths[name])
    return paths


def on_pages(folder: Path) -> Iterator[tuple[str, Array]]:
    """The documents that the viewer shows, by the server, by `report` and on the command line."""
    from PIL import Image

    folders = save_models(folder)
    yield from on_reports(folder, folders)
    photo = folder / "photo.png"
    Image.fromarray(images()[0]).save(photo)
    for name, arguments in {
        "explain": ["explain", TEXTS[0]],
        "rollout": ["explain", TEXTS[0], "--method", "rollout", "--targets", "key"],
        "classifier": ["explain", "the key", "--model", str(folders["classifier"])],
        "decoder": ["explain", "the keys to", "--model", str(folders["decoder"])],
        "photo": ["explain", str(photo), "--model", str(folders["vision"])],
    }.items():
        record = json.loads(run_command([*arguments, "--json"]))
        record.pop("provenance", None)
        yield from leaves(f"command/{name}", record)
    arguments = ["generate", "the keys to", "--model", str(folders["decoder"])]
    record = json.loads(run_command([*arguments, "--max-new-tokens", "4", "--json"]))
    record.pop("provenance", None)
    yield from leaves("command/generate", record)
    yield from on_server(folders)


def on_reports(folder: Path, folders: Mapping[str, Path]) -> Iterator[tuple[str, Array]]:
    """`attnflow report` for a text and for a prompt."""
    for name, arguments in {
        "explain": [TEXTS[0]],
        "classifier": ["the author talked to sara", "--model", str(folders["classifier"])],
        "decoder": ["the keys to the cabinets", "--model", str(folders["decoder"])],
        "generate": [
            *("--prompt", "the keys to the", "--model", str(folders["decoder"])),
            *("--max-new-tokens", "4"),
        ],
    }.items():
        path = folder / f"{name}.html"
        run_command(["report", *arguments, "--output", str(path)])
        found = re.search(
            r'<script type="application/json" id="attnflow-data">(.*?)</script>', path.read_text()
        )
        assert found is not None
        yield from leaves(f"report/{name}", json.loads(found[1]))


def on_server(folders: Mapping[str, Path]) -> Iterator[tuple[str, Array]]:
    """What the served page gets for every task."""
    from serving import serving

    decoder, classifier = folders["decoder"].name, folders["classifier"].name
    named = [{"name": name, "text": text} for name, text in DOCUMENTS.items()]
    requests: dict[str, tuple[str, dict[str, Any]]] = {
        "explain": ("explain", {"model": "verb-number", "text": TEXTS[0]}),
        "classifier": ("explain", {"model": classifier, "text": "the author talked to sara"}),
        "decoder": ("explain", {"model": decoder, "text": "the keys to the cabinets"}),
        "methods": (
            "explain",
            {"model": "verb-number", "text": TEXTS[1], "methods": ["alti", "gradient-rollout"]},
        ),
        "generate": ("generate", {"model": decoder, "prompt": "the keys to", "tokens": 4}),
        "two": (
            "generate",
            {
                **{"model": decoder, "prompt": "the keys to", "tokens": 4},
                "methods": ["rollout", "default", "gradient-rollout"],
            },
        ),
        "ask": (
            "ask",
            {"model": decoder, "question": "the keys", "documents": named, "tokens": 4},
        ),
    }
    with serving(served_models({k: folders[k] for k in ("decoder", "classifier")})) as client:
        for name, (task, fields) in requests.items():
            sent = client.post(f"/api/{task}", fields)
            assert sent.status == 202, sent.body
            job = client.finished(sent.json["id"])
            assert job["state"] == "done", job
            document = client.get(f"/api/results/{job['result']}.json").json
            yield from leaves(f"page/{name}", document)


# --- all of it ------------------------------------------------------------------------------------


def numbers() -> dict[str, Array]:
    """All of it, by name."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for room in ("evaluation", "corpora", "pages"):
            (folder / room).mkdir()
        kinds = {
            "arrays": on_arrays(),
            "models": on_models(),
            "decoders": on_decoders(),
            "images": on_images(),
            "completions": on_completions(),
            "texts written": on_texts_written(),
            "answers": on_answers(),
            "evaluation": on_evaluation(folder / "evaluation"),
            "corpora": on_corpora(folder / "corpora"),
            "pages": on_pages(folder / "pages"),
        }
        arrays: dict[str, Array] = {}
        for kind, pairs in kinds.items():
            try:
                arrays.update(pairs)
            except Exception:  # the other kinds can still be compared
                print(f"{kind}:", traceback.format_exc(limit=-6))
        return arrays


def main(mode: str, path: str) -> int:
    """Write the numbers, or compare them with those written before."""
    after = numbers()
    if mode == "write":
        np.savez(Path(path), **after)
        print(f"{len(after)} arrays written to {path}")
        return 0
    before = dict(np.load(path))
    missing = sorted(before.keys() - after.keys())
    new = sorted(after.keys() - before.keys())
    differing = sorted(
        name for name in before.keys() & after.keys() if not same(before[name], after[name])
    )
    for name in missing:
        print("missing", name)
    for name in new:
        print("new", name)
    for name in differing:
        print("differs", name, distance(before[name], after[name]))
    print(f"{len(before)} arrays, {len(differing)} differ, {len(missing)} missing, {len(new)} new")
    return int(bool(missing or differing))


def same(before: Array, after: Array) -> bool:
    """Bit for bit."""
    if before.dtype.kind in "USO" or after.dtype.kind in "USO":
        return np.array_equal(before, after)
    return np.array_equal(before, after, equal_nan=True)


def distance(before: Array, after: Array) -> str:
    """How far two arrays are apart, in words."""
    if before.shape != after.shape:
        return f"shape {before.shape} is now {after.shape}"
    if before.dtype.kind in "USO" or after.dtype.kind in "USO":
        return f"{str(before.tolist())[:150]} is now {str(after.tolist())[:150]}"
    return f"by up to {np.nanmax(np.abs(before.astype(float) - after.astype(float))):.2g}"


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
