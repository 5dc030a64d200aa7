"""run(): a corpus explained into a folder, from where the last run ended."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from attnflow._version import __version__
from attnflow.corpus.dataset import Corpus, read
from attnflow.corpus.engine import Engine, Work
from attnflow.corpus.find_files import find_files
from attnflow.corpus.output_folder import OutputFolder
from attnflow.corpus.place import Place
from attnflow.corpus.plan import Plan
from attnflow.corpus.progress_report import CorpusProgressCallback, Tally
from attnflow.corpus.settings import Columns, Settings
from attnflow.errors import StoppedError
from attnflow.methods import Method
from attnflow.tokens import TokenRef
from attnflow.tokens.units import Level

if TYPE_CHECKING:
    from torch import nn

__all__ = ["run"]

Data = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


def run(
    model: nn.Module | str | os.PathLike[str] | None,
    data: Data,
    *,
    output: str | os.PathLike[str],
    methods: Sequence[str | Method] | None = None,
    tokenizer: Any = None,
    text: str | None = None,
    prompt: str | None = None,
    completion: str | None = None,
    documents: str | None = None,
    image: str | None = None,
    id: str | None = None,  # the name of the column in most data
    targets: Literal["prediction", "all"] | Sequence[TokenRef] = "prediction",
    layer: int = -1,
    level: Level = "token",
    top: int = 5,
    values: bool = False,
    chat: bool = False,
    max_new_tokens: int = 0,
    tokens_per_batch: int = 2048,
    shard_size: int = 512,
    engine: Literal["local", "ray"] = "local",
    processes: int | None = None,
    threads: int | None = None,
    actors: int = 2,
    gpus: float = 0,
    address: str | None = None,
    progress: CorpusProgressCallback | None = None,
) -> Corpus:
    """Explain every text of a corpus, and go on where an earlier run into `output` ended.

    model: a Hugging Face name, a folder, or None for a model that ships with attnflow; a loaded
        model (with its `tokenizer`) runs in this process alone.
    data: a file, a folder, a pattern, or several: .parquet, .jsonl, .csv, .tsv, .txt, .arrow, or a
        folder that `datasets` saved.
    text, prompt, completion, documents, image, id: the names of the columns, where they are not
        called so.
    methods, targets, layer, level, top, values, chat, max_new_tokens, tokens_per_batch,
        shard_size: see `Settings`. With any of them changed, `output` must be another folder.
    engine: "local" with so many `processes` of so many `threads` (by default all cores, or one for
        each GPU); "ray" with so many `actors`, `gpus` for each, on the cluster at `address`.
    progress: told how far the run is.

    >>> import tempfile
    >>> from attnflow.testing import tiny_encoder
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / "texts.txt").write_text("the key\\nthe keys to the cabinet\\n")
    >>> model, tokenizer = tiny_encoder()
    >>> corpus = run(model, folder / "texts.txt", tokenizer=tokenizer, output=folder / "out",
    ...     methods=["rollout"])
    >>> corpus.texts, corpus.errors
    (2, 0)
    """
    place = Place(engine, processes, threads, actors, gpus, address)
    files = find_files(_paths(data))
    roles = {"text": text, "prompt": prompt, "completion": completion, "documents": documents}
    settings = Settings(
        model=_name_of(model),
        columns=Columns.of(files[0].columns(), **roles, image=image, id=id),
        methods=tuple(methods or ()),  # type: ignore[arg-type]  # names are made methods there
        targets=targets,  # type: ignore[arg-type]  # checked there
        layer=layer,
        level=level,
        top=top,
        values=values,
        chat=chat,
        max_new_tokens=max_new_tokens,
        tokens_per_batch=tokens_per_batch,
        shard_size=shard_size,
    )
    paths = tuple(str(file.path.absolute()) for file in files)
    work = Work(settings, paths, Path(output).absolute())
    with OutputFolder(work.output) as folder:
        plan = Plan.of(files, shard_size)
        record = _record(settings, plan)
        folder.check(record)
        with place.open(work, model, tokenizer) as started:
            _finish(folder, plan, record, started, progress)
    return read(work.output)


def _finish(
    folder: OutputFolder,
    plan: Plan,
    record: dict[str, Any],
    engine: Engine,
    progress: CorpusProgressCallback | None,
) -> None:
    """Have all shards done that are not."""
    identity = engine.identity()
    manifest = folder.begin({**record, **identity.settings}, identity.provenance)
    about = {name: manifest[name] for name in ("fingerprint", "settings", "provenance")}
    parts = folder.parts(manifest["fingerprint"])
    missing = [shard for shard in plan.shards if shard.number not in parts]
    tally = Tally(
        plan.rows, sum(n.texts for n in parts.values()), sum(n.errors for n in parts.values())
    )
    if progress is not None:
        progress(tally.progress())
    try:
        for event in engine.run(missing, about) if missing else ():
            state = tally.add(event)
            if progress is not None:
                progress(state)
    except KeyboardInterrupt:
        done = tally.resumed + tally.texts
        raise StoppedError(
            f"interrupted; {done:,} of {plan.rows:,} texts are kept in {str(folder.path)!r}, and "
            "the same command goes on from there."
        ) from None


def _record(settings: Settings, plan: Plan) -> dict[str, Any]:
    """What the result depends on, as far as it is known before the model is loaded."""
    record = settings.to_dict()
    del record["methods"]  # the model's identity names them, the default resolved
    model = record["model"]
    if model is not None and Path(model).exists():
        record["model"] = Path(model).name  # it may be moved: its weights say which it is
    columns = {role: name for role, name in record.pop("columns").items() if name is not None}
    return {
        "attnflow": __version__,
        **record,
        "columns": columns,
        "data": plan.digest,
        "texts": plan.rows,
    }


def _paths(data: Data) -> list[str | Path]:
    if isinstance(data, (str, os.PathLike)):
        return [os.fspath(data)]
    return [os.fspath(each) for each in data]


def _name_of(model: Any) -> str | None:
    """A name, or a path that leads to the model from anywhere on this machine."""
    if model is None:
        return None
    if isinstance(model, (str, os.PathLike)):
        path = Path(model).expanduser()
        return str(path.absolute()) if path.exists() else os.fspath(model)
    name = getattr(getattr(model, "config", None), "name_or_path", "")
    return str(name or type(model).__name__)
