"""run(): a corpus explained into a folder, from where the last run ended."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnflow._version import __version__
from attnflow.corpus.engines import Engine, Event, JobSpec, Local, Ray
from attnflow.corpus.folder import Corpus, OutputFolder, PartNotes, open_folder, read
from attnflow.corpus.plan import Plan, Shard
from attnflow.corpus.settings import Settings
from attnflow.data import find_files
from attnflow.errors import InputError, StoppedError, shorten
from attnflow.errors.progress import tell

if TYPE_CHECKING:
    from attnflow.hosts.load import ModelLike
    from attnflow.hosts.model import Model

EXPECTED_SECONDS = "expected seconds"
"""The stage that tells, before the work begins, how long all texts will take."""
_WORTH_MEASURING = 200  # texts from which on an estimate is worth its time
_SAMPLE = 16  # texts that are timed for it

Data = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


def run(
    model: ModelLike,
    data: Data,
    output: str | os.PathLike[str],
    *,
    settings: Settings | None = None,
    engine: Local | Ray | None = None,
) -> Corpus:
    """Explain every text of a corpus, and go on where an earlier run into `output` ended.

    model: a Hugging Face name, a folder, or None for a model that ships with attnflow; a loaded
        model runs in this process alone.
    data: a file, a folder, a pattern, or several: .parquet, .jsonl, .json, .csv, .tsv, .txt,
        .arrow, images, or a folder that `datasets` saved.
    settings: what is asked of each text. With any of it changed, `output` must be another folder.
    engine: where the work is done: `Local(processes=4)`, which is the default, or `Ray(actors=16)`.

    >>> import tempfile
    >>> from attnflow.testing import tiny_encoder
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / "texts.txt").write_text("the key\\nthe keys to the cabinet\\n")
    >>> settings = Settings(methods=["rollout"])
    >>> corpus = run(tiny_encoder(), folder / "texts.txt", folder / "out", settings=settings)
    >>> corpus.texts, corpus.errors
    (2, 0)
    """
    settings, engine = settings or Settings(), engine or Local()
    loaded = _loaded_model(model, settings, engine)
    files = find_files(data)
    job = JobSpec(
        _model_name(model if loaded is None else loaded.module),
        settings,
        settings.find_columns(files[0].columns()),
        tuple(str(file.path.absolute()) for file in files),
        Path(output).absolute(),
    )
    with open_folder(job.output) as folder:
        plan = Plan.make(files, settings.shard_size)
        record = _record(job, plan)
        folder.check(record)
        with closing(start_engine(job, engine, loaded)) as started:
            _finish(folder, plan, record, started)
    corpus = read(job.output)
    corpus.write_sources()
    return corpus


def start_engine(job: JobSpec, options: Local | Ray, loaded: Model | None) -> Engine:
    """Start the engine that these options ask for; a model that is loaded already runs here."""
    if loaded is not None:
        from attnflow.corpus.worker import InlineEngine

        return InlineEngine(job, loaded)
    if isinstance(options, Ray):
        from attnflow.corpus.ray_engine import RayActors

        return RayActors(job, options)
    from attnflow.corpus.local_engine import ProcessPool

    return ProcessPool(job, options)


def _finish(folder: OutputFolder, plan: Plan, record: dict[str, Any], engine: Engine) -> None:
    """Have all shards done that are not."""
    identity = engine.identity()
    manifest = folder.begin({**record, **identity.settings}, identity.provenance)
    about = {name: manifest[name] for name in ("fingerprint", "settings", "provenance")}
    parts = folder.parts(manifest["fingerprint"])
    missing = [shard for shard in plan.shards if shard.number not in parts]
    _tell_estimate(engine, missing)
    counter = ProgressCounter(plan.rows)
    for notes in parts.values():
        counter.finish(notes, new=False)
    counter.tell()
    try:
        for event in engine.run(missing, about) if missing else ():
            counter.add(event)
            counter.tell()
    except KeyboardInterrupt:
        raise StoppedError(
            f"interrupted; {counter.texts:,} of {plan.rows:,} texts are kept in "
            f"{str(folder.path)!r}, and the same command goes on from there."
        ) from None


def _tell_estimate(engine: Engine, shards: Sequence[Shard]) -> None:
    """Time some texts and tell how many seconds all of them will take; a short run just begins."""
    texts = sum(shard.count for shard in shards)
    if texts < _WORTH_MEASURING:
        return
    pace = engine.pace(replace(shards[0], count=min(shards[0].count, _SAMPLE)))
    if pace is not None:
        tell(EXPECTED_SECONDS, max(1, round(pace * texts)), texts)


@dataclass
class ProgressCounter:
    """Adds up what an engine tells, and tells it on: a batch when it begins, a part exactly."""

    total: int
    texts: int = 0
    errors: int = 0
    tokens: int = 0
    _open: dict[int, tuple[int, int]] = field(default_factory=dict)

    def add(self, event: Event) -> None:
        """Count an event."""
        if isinstance(event, PartNotes):
            self.finish(event)
        else:
            texts, tokens = self._open.get(event.shard, (0, 0))
            self._open[event.shard] = (texts + event.texts, tokens + event.tokens)

    def finish(self, notes: PartNotes, *, new: bool = True) -> None:
        """Count a part that is there; one of an earlier run took no tokens of this one."""
        self._open.pop(notes.shard, None)
        self.texts += notes.texts
        self.errors += notes.errors
        self.tokens += notes.tokens if new else 0

    def tell(self) -> None:
        """Tell three stages: tokens, texts without a result, and last the texts."""
        texts = self.texts + sum(texts for texts, _ in self._open.values())
        tell("tokens", self.tokens + sum(tokens for _, tokens in self._open.values()), 0)
        tell("texts without a result", self.errors, self.total)
        tell("texts", min(self.total, texts), self.total)


def _record(job: JobSpec, plan: Plan) -> dict[str, Any]:
    """Return what the result depends on, as far as it is known before the model is loaded."""
    record = job.settings.to_dict()
    del record["methods"]  # the model's identity names them, the default resolved
    model = job.model
    if model is not None and Path(model).exists():
        model = Path(model).name  # it may be moved: its weights say which it is
    columns = {role: name for role, name in asdict(job.columns).items() if name is not None}
    return {
        "attnflow": __version__,
        **record,
        "model": model,
        "columns": columns,
        "data": plan.digest,
        "texts": plan.rows,
    }


def _loaded_model(model: ModelLike, settings: object, engine: object) -> Model | None:
    """Return a model that is loaded already, which runs here; refuse what cannot go with it."""
    if not isinstance(settings, Settings):
        raise InputError(f"settings is attnflow.corpus.Settings(...); got {shorten(settings)}.")
    if not isinstance(engine, (Local, Ray)):
        raise InputError(
            "engine is attnflow.corpus.Local(...) or attnflow.corpus.Ray(...); got "
            f"{shorten(engine)}."
        )
    if model is None or isinstance(model, (str, os.PathLike)):
        return None
    if isinstance(engine, Ray) or (engine.processes or 1) != 1:
        raise InputError(
            "A loaded model runs in this process alone; give its name or its folder to run it in "
            "several processes or on Ray."
        )
    if engine.threads is not None:
        raise InputError(
            f"threads={engine.threads} is for processes; a loaded model has those of this process: "
            "torch.set_num_threads(...)."
        )
    from attnflow.hosts.load import as_model

    return as_model(model)


def _model_name(model: Any) -> str | None:
    """Return a name, or a path that leads to the model from anywhere on this machine."""
    if model is None:
        return None
    if isinstance(model, (str, os.PathLike)):
        path = Path(model).expanduser()
        return str(path.absolute()) if path.exists() else os.fspath(model)
    name = getattr(getattr(model, "config", None), "name_or_path", "")
    return str(name or type(model).__name__)
