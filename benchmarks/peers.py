"""attnflow and its peers on the same prompts, held against the same ablations.

    make bench-peers DATA=folder    # the folder holds running text, as for `experiment ablation`

Facts (which word states the answer?) and running text, SmolLM2. Every peer runs as it is on PyPI,
in an environment of its own. The table gives each method's agreement with ablations and its cost in
seconds for a prompt; the second one its paired difference from attnflow's default. An interrupted
run goes on by the same command.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from peer_rankings import PEERS, trained_at2

from attnflow.evaluation import Prompts, evaluate
from attnflow.hosts.load import as_model
from attnflow.storage import write_text
from attnflow_experiments.ablation.data import PARTS
from attnflow_experiments.ablation.experiment import (
    KINDS,
    differences_table,
    kind_table,
    prompts_of,
)

_AT2 = "AT2"
_OWN = (
    *("default", "careful", "visibility", "ablation-regression:samples=32"),
    *("ablation-regression:samples=64", "leave-one-out", "raw-mean"),
)


def rankings(
    model: Any, tokenizer: Any, data: Path | None, names: list[str], training: int
) -> dict[str, Any]:
    """Ours by name, theirs by function, the default first."""
    methods: dict[str, Any] = {**{name: name for name in _OWN}, **PEERS}
    selection = {name: methods[name] for name in names if name in methods} if names else methods
    if training and (not names or _AT2 in names):
        prompts = [*(prompts_of("text", "development", data) or []), *_development_facts()]
        selection[_AT2] = trained_at2(model, tokenizer, prompts, training)
    return selection


def _development_facts() -> list[Any]:
    return prompts_of("facts", "development", None) or []


def main() -> None:
    """Print both tables for each kind of data there is, and write them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--model", default=None, help="a causal language model; default: SmolLM2")
    parser.add_argument("--data", type=Path, default=None, help="folder with running text")
    parser.add_argument("--part", choices=PARTS, default="development")
    parser.add_argument("--samples", type=int, default=30)
    parser.add_argument("--skip", type=int, default=0, help="prompts that were looked at already")
    parser.add_argument("--only", action="append", default=[], choices=[*_OWN, *PEERS, _AT2])
    parser.add_argument("--training", type=int, default=64, help="prompts AT2 is trained on")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--output", type=Path, default=Path("out/peers"))
    options = parser.parse_args()
    loaded = as_model(options.model, default="smollm2")
    model = loaded.module.float().to(options.device)
    methods = rankings(model, loaded.tokenizer, options.data, options.only, options.training)
    options.output.mkdir(parents=True, exist_ok=True)
    pages = []
    for kind in ("facts", "text"):
        prompts = prompts_of(kind, options.part, options.data, options.skip)
        if prompts is None:
            continue
        evaluation = evaluate(
            (model, loaded.tokenizer),
            prompts,
            methods,
            subject=Prompts(**KINDS[kind].options),
            samples=options.samples,
            journal=options.output / f"{kind}-{options.part}-{options.skip}.jsonl",
        )
        for table in (kind_table(kind, evaluation), differences_table(kind, evaluation)):
            pages.append("\n".join(table.markdown()))
            print(pages[-1], flush=True)
    write_text(options.output / "peers.md", "\n\n".join(pages))


if __name__ == "__main__":
    main()
