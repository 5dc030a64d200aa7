"""Results as HTML. A view is one file: the viewer, its style and the data inside, nothing fetched.

The page may run exactly the scripts it was written with: its content security policy names them by
their hash. The data stands in a block that no browser runs, with every sign that could end it
escaped, because a token may be `</script>`.

What a notebook shows of a result is static: no script, no style sheet, nothing fetched. The
sentence comes first, then the text, shaded by what the target draws on; the numbers are folded
away. Only what is worth a shade gets an element, so that a long prompt stays small. The markup is
in `templates/static.html.j2`, which escapes every value.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from attnflow.attribution import Attribution
from attnflow.attribution.passages import Statement, statements_of
from attnflow.attribution.patch_maps import Contrast, PatchMap, contrast, patch_maps
from attnflow.errors import percent
from attnflow.show import sentences
from attnflow.show.packing import picture_address, warm_map
from attnflow.tokens.patches import enlarge

__all__ = ["SCRIPTS", "STYLES", "VIEWER_FOLDER", "InteractiveView", "embedded_json", "page"]

_COMMENT_LINE = re.compile(r"^ *//.*\n", re.MULTILINE)
_INDENTATION = re.compile(r"^ +", re.MULTILINE)  # no text of the viewer runs over several lines
VIEWER_FOLDER = Path(__file__).parent / "viewer"
_TEMPLATES = Path(__file__).parent / "templates"

# In the order they need each other.
SCRIPTS = (
    *("elements.js", "document.js", "words.js", "lines.js", "text.js", "answer.js", "map.js"),
    *("ranking.js", "heads.js", "cut.js", "graph.js", "picture.js", "verdict.js", "paths.js"),
    *("controls.js", "viewer.js"),
)
STYLES = ("viewer.css",)
_OWN_DATA = "open.js"  # only in a page that carries its data
_OWN_STYLE = "page.css"

_ROWS = 12  # of the folded table
_SENTENCES = 6  # of the targets or statements that get a sentence
_SHADED = 120  # words that are shaded at most
_FAINTEST = 0.04  # a share of the strongest below which a word is left unshaded
_LONGEST = 6_000  # characters of text that a cell shows
_LONGEST_COMPLETION = 1_000
_DEEP = (8, 69, 148)  # the dark end of a single-hue blue scale: readable to the colour-blind
_AGAINST = (154, 66, 0)
_ESCAPES = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"}


def render(template: str | Path, **values: Any) -> str:
    """Return a Jinja template, by name or path, with these values, escaped unless marked safe."""
    return str(_compiled(_TEMPLATES / template).render(values))


@cache
def _compiled(path: Path) -> Any:
    import jinja2  # here, because a command that writes no HTML need not wait for it

    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["percent"] = percent
    return environment.from_string(path.read_text(encoding="utf-8"))


def page(document: Mapping[str, Any]) -> str:
    """Return the self-contained page of a view document.

    >>> from attnflow import AttentionTrace, Rollout
    >>> from attnflow.show.view import view
    >>> trace = AttentionTrace.from_arrays([[[1.0, 0.0], [0.5, 0.5]]], ["the", "</script>"])
    >>> page(view(Rollout()(trace)))[:15]
    '<!doctype html>'
    """
    script, style = _contents((*SCRIPTS, _OWN_DATA)), _contents((*STYLES, _OWN_STYLE))
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    return render(
        "page.html.j2",
        title=document["title"],
        data=embedded_json(document),
        policy=policy,
        script=script,
        style=style,
    )


def embedded_json(document: Mapping[str, Any]) -> str:
    """Return JSON that is safe between script tags: ASCII, without the signs of markup.

    >>> print(embedded_json({"token": "</script>"}))
    {"token":"\\u003c/script\\u003e"}
    """
    text = json.dumps(document, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    for sign, escaped in _ESCAPES.items():
        text = text.replace(sign, escaped)
    return text


@dataclass(frozen=True, eq=False)
class InteractiveView:
    """A page for a notebook: displayed as the viewer in a frame of its own, with the static form
    below it for places that strip scripts.

    >>> InteractiveView("<p>the viewer</p>", static="<p>a table</p>")._repr_html_()[:30]
    '<iframe sandbox="allow-scripts'
    """

    html: str
    static: str
    height: int = 760

    def _repr_html_(self) -> str:
        template = "frame.html.j2"
        return render(template, page=self.html, static=self.static, height=self.height)


@cache
def _contents(names: tuple[str, ...]) -> str:
    """Join the files; comments of whole lines and indentation stay in the package."""
    texts = ((VIEWER_FOLDER / name).read_text(encoding="utf-8") for name in names)
    return "\n".join(_INDENTATION.sub("", _COMMENT_LINE.sub("", text)) for text in texts)


def _hash(content: str) -> str:
    digest = hashlib.sha256(content.encode("utf-8")).digest()
    return f"sha256-{base64.b64encode(digest).decode('ascii')}"


# -- what a notebook shows ------------------------------------------------------------------------


def shade(share: float) -> tuple[str, str]:
    """Return background and text colour for a share from −1 to 1: white to blue, or to brown."""
    share = min(max(share, -1.0), 1.0)
    ends = _DEEP if share >= 0 else _AGAINST
    red, green, blue = (round(255 + (end - 255) * abs(share)) for end in ends)
    return f"#{red:02x}{green:02x}{blue:02x}", "#ffffff" if abs(share) > 0.55 else "#111111"


def result_html(result: Attribution) -> str:
    """Return what a notebook shows of a result."""
    caveats = sentences.caveats(result)
    return _html(result, question=None, caveats=caveats, sentences=_sentences(result))


def answer_html(result: Attribution, *, question: str, lines: Sequence[str]) -> str:
    """Return what a notebook shows of an answer: question, answer, a line for each statement."""
    return _html(result, question=question, caveats=[], sentences=lines)


def _html(result: Attribution, **heading: Any) -> str:
    """Fill the template: the heading, what it rests on, the image or shaded text, the legend."""
    rows = sentences.prediction_rows(result) or list(range(len(result.targets)))
    legend = sentences.UNIT_LEGENDS[sentences.unit_of(result)]
    values: dict[str, Any] = {"maps": [], "words": None}
    if result.sources.grid is not None or result.sources.images:
        values["maps"] = _maps(result, rows[0])
    else:
        row = sentences.word_row(result, rows)
        numbers = [(row.names[k], row.values[k]) for k in row.order[:_ROWS]]
        values["table"] = [(name, row.number(v), f"{v:.3g}") for name, v in numbers]
        values |= {"words": _words(result, row), "count": len(row.names)}
    return render(
        "static.html.j2",
        prediction=result.prediction,
        completion=_completion(result),
        verdicts=sentences.verdict_sentences(result),
        about=f"{result.title}, {sentences.reading_place(result)}. {legend} "
        "The interactive view: result.viewer().",
        **values,
        **heading,
    )


def _sentences(result: Attribution) -> list[str]:
    count = len(result.targets)
    if result.sources.grid is not None or result.sources.images:
        rows = sentences.prediction_rows(result) or range(min(count, _SENTENCES))
        every = sentences.image_sentences(result)
        return [every[row] for row in rows]
    if count == 1:
        subject = sentences.answer_subject(result)
        return [sentences.sources_sentence(result, k=4, subject=subject)]
    if "completion" in result.provenance:
        statements = statements_of(result)
        if any(len(statement.sources) > 1 for statement in statements):
            return share_lines(statements[:_SENTENCES])
    rows, more = range(min(count, _SENTENCES)), count - _SENTENCES
    lines = [sentences.sources_sentence(result, [row], k=2) for row in rows]
    return [*lines, *([f"… and {more} more targets: result.row(...)."] if more > 0 else [])]


def share_lines(statements: Sequence[Statement]) -> list[str]:
    """Say what statements draw on; of one that needs no document a share would say nothing."""
    return [
        f"“{each.text}” {each.shares}."
        for each in statements
        if each.verdict is None or each.verdict.kind != "none"
    ]


def _words(result: Attribution, row: sentences.WordRow) -> list[dict[str, Any]]:
    """Return the text in words; those with a share worth seeing have colours and a number."""
    spelled = result.sources.surfaces()
    pairs = zip(row.names, np.abs(row.values).tolist(), strict=True)
    sizes = [0.0 if sentences.is_framing(name) else size for name, size in pairs]
    descending = np.sort(sizes)[::-1]
    strongest = float(descending[0]) or 1.0
    faintest = max(_FAINTEST * strongest, float(descending[min(_SHADED, len(sizes) - 1)]))
    framing = sentences.framing_tokens(spelled)
    words: list[dict[str, Any]] = []
    length = 0
    for value, size, columns in zip(row.values.tolist(), sizes, row.columns, strict=True):
        surface = "".join(spelled[column] for column in columns)
        if all(framing[column] for column in columns):  # the signs of a chat are not shown
            surface = "\n" * surface.count("\n") if words else ""
        length += len(surface)
        if length > _LONGEST:
            words.append({"text": " …", "number": None})
            break
        if size < faintest or not surface.strip():
            words += [{"text": surface, "number": None}] if surface else []
            continue
        text = surface.lstrip(" ")
        background, ink = shade(value / strongest)
        colours = {"background": background, "ink": ink, "number": row.number(value)}
        words.append({"space": surface[: len(surface) - len(text)], "text": text, **colours})
    return words


def _maps(result: Attribution, row: int) -> list[dict[str, Any]]:
    """Return what one target draws on over the patches of each image, as pictures."""
    maps = patch_maps(result, target=result.targets.positions[row])
    ends = contrast(maps)
    pictures = list(result.provenance.get("images") or ())
    pictures += [None] * (len(maps) - len(pictures))
    return [
        {
            "picture": picture,
            "overlay": _overlay(patches, ends),
            "target": result.targets.text[row],
            "width": patches.grid.width,
            "height": patches.grid.height,
        }
        for patches, picture in zip(maps, pictures, strict=False)
    ]


def _overlay(patches: PatchMap, ends: Contrast) -> str:
    """Return the address of a map that is laid over the picture, which keeps its colours."""
    shares = ends.shares(patches.values)
    small = enlarge(shares, patches.grid.rows * 12, patches.grid.columns * 12)
    return picture_address(warm_map(small))


def _completion(result: Attribution) -> str | None:
    if "completion" not in result.provenance:
        return None
    text = str(result.provenance["completion"] or "").strip()
    return text if len(text) <= _LONGEST_COMPLETION else f"{text[: _LONGEST_COMPLETION - 1]}…"
