"""Many texts: a corpus explained into a folder, on one machine or on a cluster.

`run` explains every text of some files with a model and writes rows of Parquet, shard by shard. A
run that was stopped or killed goes on with the same call. `Settings` say what is asked of each
text, `Local` and `Ray` where the work is done. `read` gives the rows back, and `summarize` answers
the usual questions about them on one page. docs/corpora.md shows the way from a file to an answer,
and what the columns mean.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnflow.errors import submodules

if TYPE_CHECKING:
    from attnflow.corpus.corpus_run import run
    from attnflow.corpus.engines import Local, Ray
    from attnflow.corpus.folder import Corpus, read
    from attnflow.corpus.settings import Settings
    from attnflow.corpus.summary import Summary, summarize

__all__ = ["Corpus", "Local", "Ray", "Settings", "Summary", "read", "run", "summarize"]

_HOME = {
    **dict.fromkeys(("Corpus", "read"), "folder"),
    **dict.fromkeys(("Local", "Ray"), "engines"),
    **dict.fromkeys(("Summary", "summarize"), "summary"),
    "Settings": "settings",
    "run": "corpus_run",
}


__getattr__ = submodules(__name__, homes=_HOME)  # when it is used: pyarrow and torch take a second
