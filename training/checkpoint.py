"""A training run that can be interrupted: it is written down now and then, and gone on with."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn


@dataclass
class Run:
    """The state of a run: model, optimiser, schedule, how far it is, and its best weights.

    path: the file the state is kept in.
    identity: what a state must have in common with a run that goes on from it: settings and data.
    unit: what `done` counts, for messages.
    """

    path: Path
    identity: Any
    model: nn.Module
    optimiser: torch.optim.Optimizer
    schedule: torch.optim.lr_scheduler.LRScheduler
    unit: str
    done: int = 0
    best: tuple[float, int] = (-1.0, -1)  # score on the development data, and after how many
    best_weights: dict[str, Tensor] = field(default_factory=dict)

    def keep_if_best(self, score: float) -> None:
        """Remember the weights that are best on the development data."""
        if score > self.best[0]:
            self.best = (score, self.done)
            weights = self.model.state_dict()
            self.best_weights = {name: tensor.clone() for name, tensor in weights.items()}

    def save(self) -> None:
        """Write the state to a new file first, so that a crash cannot spoil the old one."""
        state = {
            "identity": self.identity,
            "model": self.model.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "schedule": self.schedule.state_dict(),
            "random": torch.get_rng_state(),
            "done": self.done,
            "best": self.best,
            "best_weights": self.best_weights,
        }
        self.path.parent.mkdir(parents=True, exist_ok=True)
        fresh = self.path.with_suffix(".new")
        torch.save(state, fresh)
        fresh.replace(self.path)

    def resume(self) -> None:
        """Go on from a state of the same settings and data, if there is one."""
        if not self.path.exists():
            return
        state: dict[str, Any] = torch.load(self.path, weights_only=True)
        if state.get("identity") != self.identity:
            raise SystemExit(f"{self.path} belongs to other settings or data; remove it")
        self.model.load_state_dict(state["model"])
        self.optimiser.load_state_dict(state["optimiser"])
        self.schedule.load_state_dict(state["schedule"])
        torch.set_rng_state(state["random"])
        self.done, self.best = state["done"], state["best"]
        self.best_weights = state["best_weights"]
        print(f"resumed after {self.unit} {self.done}", flush=True)


def parameter_groups(model: nn.Module) -> list[dict[str, Any]]:
    """For AdamW: matrices and embeddings decay, neither biases nor norms do."""
    decaying = [item for item in model.parameters() if item.dim() > 1]
    others = [item for item in model.parameters() if item.dim() < 2]
    return [{"params": decaying}, {"params": others, "weight_decay": 0}]


def pad_ids(rows: list[list[int]], pad: int) -> tuple[Tensor, Tensor]:
    """Sequences of different lengths in one tensor, with the mask that hides the padding."""
    tensors = [torch.tensor(row) for row in rows]
    ids = nn.utils.rnn.pad_sequence(tensors, batch_first=True, padding_value=pad)
    lengths = torch.tensor([len(row) for row in tensors])
    return ids, (torch.arange(ids.shape[1])[None, :] < lengths[:, None]).long()
