"""Documents as people have them: PDF, Word, HTML and text files, folders, patterns, and stdin."""

from __future__ import annotations

import glob
import io
import logging
import re
import sys
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from html.parser import HTMLParser
from pathlib import Path

from attnflow.data.files import file_errors
from attnflow.errors import FileError, InputError, did_you_mean, optional_import, shorten
from attnflow.tokens.documents import Document, named_documents

STANDARD_INPUT = "-"
ENDINGS = (".txt", ".md", ".rst", ".html", ".htm", ".pdf", ".docx")
_HTML = re.compile(rb"\s*<(?:!doctype html|html)\b", re.IGNORECASE)
_LARGEST = 50_000_000  # bytes of a file; most of a PDF is pictures
_LONGEST = 2_000_000  # characters of a document: far more than any prompt takes
_HIDDEN = {"title", "script", "style", "template", "noscript"}
_INLINE = {"a", "b", "code", "em", "font", "i", "mark", "small", "span", "strong", "sub", "sup"}
_CELL, _ROW = "\x1f", "\x1e"  # between cells and rows of a table: spaces that nobody writes
_WRAPPED = 0.7  # of the widest line of a page: a line as long as this goes on in the next


def read_documents(places: Sequence[str], answer: str | None = None) -> tuple[Document, ...]:
    """Read the documents that are named: files, folders, patterns such as `notes/*.txt`, or `-`.

    answer: a file that is none of them, though a pattern may match it.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "a.html"
    >>> _ = path.write_text("<title>A</title><p>Pay in <b>30</b> days.", encoding="utf-8")
    >>> read_documents([str(path.parent)])[0].text
    'Pay in 30 days.'
    """
    if not places:
        raise InputError(
            "There is no document: name files, as in contract.pdf 'notes/*.txt'; a folder stands "
            "for the files in it, and - for standard input."
        )
    files = list(dict.fromkeys(file for place in places for file in _files(place)))
    if answer is not None and answer != STANDARD_INPUT:
        files = [file for file in files if Path(file).absolute() != Path(answer).absolute()]
    return named_documents([read_document(file, _name(file, files)) for file in files])


def read_document(place: str, name: str = "text") -> Document:
    """Read one file, or standard input (-), as its text; a PDF also says where its pages begin.

    >>> read_document("nowhere.pdf")
    Traceback (most recent call last):
    attnflow.errors.FileError: There is no file 'nowhere.pdf'.
    """
    label, path = shorten(place), Path(place)
    if place == STANDARD_INPUT:
        label, content = "Standard input", sys.stdin.buffer.read()
    elif not path.is_file():
        if path.is_dir():
            raise FileError(f"{label} is a folder; name a file in it.")
        raise FileError(f"There is no file {label}.{_near(place)}")
    elif path.stat().st_size > _LARGEST:
        size = f"{path.stat().st_size:,}"
        raise InputError(f"{label} has {size} bytes; up to {_LARGEST:,} are read. Cut it in parts.")
    else:
        with file_errors(path):
            content = path.read_bytes()
    pages = _reader(path.suffix.lower(), content)(content, label)
    text = "\n\n".join(pages)
    if not text.strip():
        scanned = " It holds pictures of text, perhaps: run it through OCR first."
        raise InputError(f"{label} holds no text.{scanned if content[:4] == b'%PDF' else ''}")
    if len(text) > _LONGEST:
        raise InputError(
            f"{label} has {len(text):,} characters of text; up to {_LONGEST:,} are read. Cut it "
            "into parts."
        )
    starts = [0]
    for page in pages[:-1]:
        starts.append(starts[-1] + len(page) + 2)
    return Document(name, text, tuple(starts) if content[:4] == b"%PDF" else ())


def _name(file: str, files: Sequence[str]) -> str:
    """Name a document by its file, with the folders where two files have one name."""
    if file == STANDARD_INPUT:
        return "standard input"
    name = Path(file).name
    return name if [Path(other).name for other in files].count(name) == 1 else file


def _files(place: str) -> list[str]:
    """Return the files that a place stands for: itself, those of a folder, those of a pattern."""
    if place == STANDARD_INPUT or Path(place).is_file():
        return [place]
    if Path(place).is_dir():
        paths = [
            path
            for path in sorted(Path(place).rglob("*"))
            if path.suffix.lower() in ENDINGS and path.is_file()
            if not any(part.startswith(".") for part in path.relative_to(place).parts)
        ]
        if not paths:
            raise InputError(
                f"The folder {place!r} holds no document: names end in {', '.join(ENDINGS)}."
            )
        return [str(path) for path in paths]
    matches = sorted(glob.glob(place, recursive=True))  # noqa: PTH207 (an absolute pattern too)
    matches = [name for name in matches if Path(name).is_file()]
    if not matches:
        raise InputError(
            f"The document {place!r}: there is no such file, and no file matches it as a pattern."
            f"{_near(place)}"
        )
    return matches


def _near(place: str) -> str:
    """Return a question for the nearest name of the files that stand in the same folder."""
    folder = Path(place).parent
    return did_you_mean(place, [str(path) for path in folder.glob("*")] if folder.is_dir() else [])


# -- formats ---------------------------------------------------------------------------------------


def _reader(ending: str, content: bytes) -> Callable[[bytes, str], list[str]]:
    """Return what reads a file: by its content where that shows it, else by its ending."""
    if content.startswith((b"%PDF", b"PK\x03\x04")):
        return _read_pdf if content.startswith(b"%") else _read_docx
    is_html = ending in (".html", ".htm") or _HTML.match(content)
    return _read_html if is_html else _read_plain


def _read_plain(content: bytes, label: str) -> list[str]:
    try:
        return [content.decode("utf-8-sig")]
    except UnicodeDecodeError as error:
        raise InputError(
            f"{label} is not UTF-8 text ({error.reason}), and no PDF, Word (.docx) or HTML file. "
            "Save it as one of these, or as UTF-8 (a file in Latin-1: iconv -f latin1 -t utf-8)."
        ) from error


def _read_html(content: bytes, label: str) -> list[str]:
    parser = _VisibleText()
    parser.feed(_read_plain(content, label)[0])
    parser.close()
    # lines of table rows are as those of a Word table; what stands empty beside them is layout
    cells = "".join(parser.pieces).split(_CELL)
    text = " | ".join(cell.strip(" \t\r\n\xa0") for cell in cells)
    lines = (" ".join(line.split()).strip(" |") for line in text.split("\n"))
    return [re.sub("\n{3,}", "\n\n", "\n".join(lines)).strip()]


class _VisibleText(HTMLParser):
    """The text of a page that a reader sees, a line for each block and each row of a table."""

    def __init__(self) -> None:
        super().__init__()
        self.pieces: list[str] = []
        self._hidden = 0
        self._is_in_row = False  # behind its first cell

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._hidden += tag in _HIDDEN
        if tag in ("td", "th") and self._is_in_row:
            self.pieces.append(_CELL)
        else:
            self._break_line(tag)
        self._is_in_row = tag in ("td", "th") or (self._is_in_row and tag not in ("tr", "table"))

    def handle_endtag(self, tag: str) -> None:
        self._hidden -= tag in _HIDDEN and self._hidden > 0
        self._break_line(tag)

    def _break_line(self, tag: str) -> None:
        if tag not in _INLINE:
            self.pieces.append(_ROW + "\n" if tag in ("tr", "table") else "\n")

    def handle_data(self, data: str) -> None:
        if not self._hidden:
            self.pieces.append(data.replace("\n", " "))


def _read_pdf(content: bytes, label: str) -> list[str]:
    pypdf = optional_import("pypdf", extra="files", purpose="Reading a PDF")
    try:
        with _silent("pypdf"):  # of damage that it repairs, or that we tell
            reader = pypdf.PdfReader(io.BytesIO(content))
            if reader.is_encrypted and not reader.decrypt(""):
                raise InputError(f"{label} is locked with a password; save it without one.")
            pages = [page.extract_text() for page in reader.pages]
    except (pypdf.errors.PyPdfError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{label} is a damaged PDF ({error}). Print it to a new one.") from error
    return [_unwrapped(page) for page in pages]


@contextmanager
def _silent(library: str) -> Iterator[None]:
    """Without the warnings that a library logs."""
    log = logging.getLogger(library)
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(level)


def _unwrapped(page: str) -> str:
    """Return the text of a page with the lines joined that only its width has broken."""
    lines = [line.strip() for line in page.splitlines()]
    widest = max(map(len, lines), default=0)
    text = ""
    for line, following in zip(lines, [*lines[1:], ""], strict=False):
        goes_on = len(line) >= _WRAPPED * widest and line[-1:] not in ".!?:;" and following
        if goes_on and line.endswith("-") and following[0].islower():
            text += line[:-1]
        else:
            text += line + (" " if goes_on else "\n")
    return text.strip()


def _read_docx(content: bytes, label: str) -> list[str]:
    docx = optional_import("docx", extra="files", purpose="Reading a Word document")
    try:
        blocks = list(docx.Document(io.BytesIO(content)).iter_inner_content())
    except (ValueError, KeyError, OSError, zipfile.BadZipFile) as error:
        raise InputError(
            f"{label} is no Word document (.docx): {error}. Save it as .docx or PDF."
        ) from error
    return ["\n".join(line for block in blocks for line in _block_lines(block))]


def _block_lines(block: object) -> list[str]:
    """Return the line of a paragraph, or one for each row of a table."""
    rows = getattr(block, "rows", None)
    if rows is None:
        return [getattr(block, "text", "")]
    return [" | ".join(cell.text.strip() for cell in row.cells) for row in rows]
