"""The summary of a corpus as one page for people."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from attnflow.corpus.dataset import Corpus
from attnflow.errors.percent import percent

__all__ = ["summary_page"]

_STYLE = """
:root { color-scheme: light dark; --ink: #1d2129; --soft: #667085; --line: #d9dde4; --bar: #3b6fb6;
  --back: #fff; --panel: #f6f7f9 }
@media (prefers-color-scheme: dark) { :root { --ink: #e7e9ee; --soft: #98a2b3; --line: #343a46;
  --bar: #6fa0e0; --back: #14171c; --panel: #1c2027 } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--back);
  max-width: 68rem; margin: 2rem auto; padding: 0 1.25rem }
h1 { font-size: 1.5rem; margin: 0 } h2 { font-size: 1.1rem; margin: 2.2rem 0 .6rem }
h3 { font-size: .95rem; margin: 0 0 .5rem } p { margin: .3rem 0 } .soft { color: var(--soft) }
.panels { display: grid; grid-template-columns: repeat(auto-fit, minmax(19rem, 1fr)); gap: 1rem }
.panel { background: var(--panel); border: 1px solid var(--line); border-radius: 8px;
  padding: .9rem 1rem }
table { border-collapse: collapse; width: 100%; font-size: .88rem }
th { text-align: left; font-weight: 500; color: var(--soft) }
td, th { padding: .16rem .4rem .16rem 0; border-bottom: 1px solid var(--line); vertical-align: top }
td.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap }
td.bar { width: 38% } .fill { background: var(--bar); height: .62rem; border-radius: 2px;
  margin-top: .4rem }
.bins { display: flex; align-items: flex-end; gap: 3px; height: 84px }
.bins div { flex: 1; background: var(--bar); border-radius: 2px 2px 0 0; min-height: 1px }
.ends { display: flex; justify-content: space-between; font-size: .8rem; color: var(--soft) }
code { font-size: .88em }
"""


_FLAGS = {
    "collapsed": "the row is nearly the same for every target",
    "saturated": "most of its values no longer depend on the target",
    "alone": "a batch failed, and its texts were run one by one",
}


def summary_page(summary: Mapping[str, Any], corpus: Corpus) -> str:
    """The page, from the plain values of a summary."""
    name = escape(str(corpus.path.name))
    parts = [
        f"<h1>{name}</h1>",
        *(f"<p>{line}</p>" for line in _heading(summary, corpus)),
        *_errors(summary["errors"]),
        *_methods(summary),
        *_pairs(summary["pairs"], summary["level"]),
        *_predictions(summary["predictions"]),
        *_provenance(corpus),
    ]
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{name}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head>'
        f"<body>{''.join(parts)}</body></html>\n"
    )


def _heading(summary: Mapping[str, Any], corpus: Corpus) -> list[str]:
    total = int(corpus.settings["texts"])
    texts = f"{summary['texts']:,} texts"
    if not summary["complete"]:
        texts = f"{summary['texts']:,} of {total:,} texts so far"
    model = escape(str(corpus.provenance.get("model", "")))
    methods = ", ".join(f"<code>{escape(name)}</code>" for name in summary["methods"])
    failed = sum(summary["errors"].values())
    bad = f", {failed:,} without a result" if failed else ""
    return [
        f"{texts}{bad}, explained by {methods}.",
        f'<span class="soft">Model {model}; a source is a {summary["level"]}.</span>',
    ]


def _errors(errors: Mapping[str, int]) -> list[str]:
    if not errors:
        return []
    rows = _table(("texts", "why there is no result"), ([f"{n:,}", s] for s, n in errors.items()))
    return ["<h2>Texts without a result</h2>", f'<div class="panel">{rows}</div>']


def _methods(summary: Mapping[str, Any]) -> list[str]:
    level = summary["level"]
    strongest = [
        f'<div class="panel"><h3>{escape(name)}</h3>{_bars(each["strongest"], each["rows"])}</div>'
        for name, each in summary["methods"].items()
    ]
    places = [
        f'<div class="panel"><h3>{escape(name)}</h3>{_places(each, level)}</div>'
        for name, each in summary["methods"].items()
    ]
    return [
        "<h2>Which sources are used most</h2>",
        f'<p class="soft">How often each {level} is the strongest source of a target.</p>',
        f'<div class="panels">{"".join(strongest)}</div>',
        f"<h2>Does the first {level} win?</h2>",
        f'<div class="panels">{"".join(places)}</div>',
    ]


def _bars(counts: Mapping[str, int], rows: int) -> str:
    most = max(counts.values(), default=1)
    lines = [
        f"<tr><td>{escape(text[:80])}</td>"
        f'<td class="bar"><div class="fill" style="width:{100 * count / most:.1f}%"></div></td>'
        f'<td class="n">{percent(count / max(1, rows), 1)}</td></tr>'
        for text, count in counts.items()
    ]
    return f"<table>{''.join(lines)}</table>"


def _places(each: Mapping[str, Any], level: str) -> str:
    total = max(1, sum(each["places"]))
    most = max(*each["places"], 1)
    bins = "".join(
        f'<div style="height:{100 * count / most:.1f}%" title="{percent(count / total, 1)}"></div>'
        for count in each["places"]
    )
    first = each["first_wins"]
    sentence = "No text has more than one source."
    if first is not None:
        sentence = f"The first {level} is the strongest in {percent(first, 1)} of the rows."
    flags = "".join(
        f'<p class="soft">{percent(count / max(1, each["rows"]), 1)} of the rows are flagged '
        f"{escape(name)}: {_FLAGS.get(name, 'see the docs')}.</p>"
        for name, count in each["flags"].items()
    )
    return (
        f"<p>{sentence}</p><p>The strongest source holds {percent(each['share'], 1)} of a row on "
        f'average.</p><div class="bins">{bins}</div><div class="ends"><span>first</span>'
        f"<span>where the strongest {level} stands</span><span>last</span></div>{flags}"
    )


def _pairs(pairs: Sequence[Mapping[str, Any]], level: str) -> list[str]:
    if not pairs:
        return []
    panels = []
    for pair in pairs:
        one, other = pair["methods"]
        examples = (
            [str(e["text"] if e["id"] is None else e["id"]), e["target"], *e["sources"]]
            for e in pair["examples"]
        )
        panels.append(
            f'<div class="panel"><h3>{escape(one)} and {escape(other)}</h3>'
            f"<p>They name the same strongest {level} in {percent(pair['agreement'], 1)} of the "
            f"rows, and share {percent(pair['overlap'])} of the sources they list.</p>"
            f"{_table(('text', 'target', one, other), examples)}</div>"
        )
    return [
        "<h2>Where methods disagree</h2>",
        '<p class="soft">The texts on which they have least in common, and what each names.</p>',
        f'<div class="panels">{"".join(panels)}</div>',
    ]


def _predictions(predictions: Mapping[str, int]) -> list[str]:
    if not predictions:
        return []
    total = sum(predictions.values())
    return [
        "<h2>What the model says</h2>",
        f'<div class="panel">{_bars(predictions, total)}</div>',
    ]


def _provenance(corpus: Corpus) -> list[str]:
    rows = {**corpus.provenance, **corpus.settings}
    values = ([name, str(value)] for name, value in sorted(rows.items()) if value is not None)
    return [
        "<h2>How it was made</h2>",
        f'<details><summary class="soft">Settings, model and data</summary>{_table((), values)}'
        "</details>",
    ]


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in heads)
    body = "".join(
        f"<tr>{''.join(f'<td>{escape(cell[:200])}</td>' for cell in row)}</tr>" for row in rows
    )
    return f"<table><tr>{head}</tr>{body}</table>"
