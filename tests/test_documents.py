"""Documents as people have them: files written by the libraries that people write them with."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

import attnflow
from attnflow.cli.app import _run
from attnflow.data import read_document, read_documents
from attnflow.errors import FileError, InputError, TokensError
from attnflow.testing import tiny_decoder
from attnflow.tokens.documents import Document

PAGES = (
    ["The contract", "the keys to the cabinets are with the author of the re-", "port today."],
    ["the author is old. the key is here."],
)


def write_pdf(path: Path, pages: Any = PAGES) -> None:
    figure = pytest.importorskip("matplotlib.figure")
    backend = pytest.importorskip("matplotlib.backends.backend_pdf")
    with backend.PdfPages(path) as book:
        for lines in pages:
            page = figure.Figure()
            for number, line in enumerate(lines):
                page.text(0.05, 0.9 - number / 10, line)
            book.savefig(page)


def write_docx(path: Path) -> None:
    document = pytest.importorskip("docx").Document()
    document.add_heading("Prices")
    document.add_paragraph("A key costs 5 euros.")
    table = document.add_table(rows=1, cols=2)
    table.rows[0].cells[0].text, table.rows[0].cells[1].text = "lock", "9 euros"
    document.save(path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("pypdf")
    path = tmp_path_factory.mktemp("files")
    write_pdf(path / "contract.pdf")
    write_docx(path / "prices.docx")
    (path / "page.html").write_text(
        "<!DOCTYPE html><title>no</title><script>var no = 1</script><h1>Hours</h1>"
        "<p>Open at <b>9</b>,\nevery day &amp; night.<br>Not in May.",
        encoding="utf-8",
    )
    (path / "notes.md").write_text("# Notes\n\n- the author is here\n", encoding="utf-8")
    (path / "photo.png").write_bytes(b"\x89PNG")
    (path / ".hidden.txt").write_text("no", encoding="utf-8")
    return path


def test_a_folder_stands_for_the_documents_in_it(folder: Path) -> None:
    texts = {document.name: document.text for document in read_documents([str(folder)])}
    assert list(texts) == ["contract.pdf", "notes.md", "page.html", "prices.docx"]
    assert texts["page.html"].splitlines() == [
        "Hours",
        "",
        "Open at 9, every day & night.",
        "Not in May.",
    ]
    assert texts["prices.docx"] == "Prices\nA key costs 5 euros.\nlock | 9 euros"
    assert texts["notes.md"] == "# Notes\n\n- the author is here\n"
    assert texts["contract.pdf"].splitlines()[:2] == [
        "The contract",
        "the keys to the cabinets are with the author of the report today.",
    ]


def test_a_row_of_a_table_is_a_line(tmp_path: Path) -> None:
    """As in a Word document: a number alone in a line would say nothing."""
    page = tmp_path / "team.html"
    page.write_text(
        "<p>Team</p><table>\n<thead><tr>\n<th>City</th>\n<th>People</th>\n</tr></thead>\n"
        "<tr><td><p>Lisbon</p></td>\n  <td><b>9</b> of 12</td></tr><tr><td>Porto<td>31</table>"
        "<table><tr><td>a</td><td></td><td>c</td></tr></table>"
        "<table><tr><td></td><td><p>Dear all,</p><p>Bye.</p></td><td> </td></tr></table>Rui",
        encoding="utf-8",
    )
    lines = read_document(str(page)).text.split("\n")
    assert [line for line in lines if line] == [
        "Team", "City | People", "Lisbon | 9 of 12", "Porto | 31", "a | | c",
        "Dear all,", "Bye.", "Rui",
    ]  # fmt: skip


def test_pages_begin_where_they_begin(folder: Path) -> None:
    document = read_document(str(folder / "contract.pdf"))
    first, second = document.pages
    assert (first, document.text[second:]) == (0, "the author is old. the key is here.")
    assert read_document(str(folder / "notes.md")).pages == ()


def test_a_citation_names_the_page_and_the_sentence_on_it(folder: Path) -> None:
    documents = read_documents([str(folder / "contract.pdf"), str(folder / "notes.md")])
    answer = attnflow.ask(tiny_decoder(), "the keys", documents, answer="the author", check=False)
    places = {}
    for passage in attnflow.attribution.passages.passages_of(answer.result):
        places[passage.name] = [
            passage.place_of(k + 1).removeprefix(passage.name)
            for k in range(len(passage.sentences))
        ]
    assert places["contract.pdf"] == [
        *(", page 1, sentence 1", ", page 1, sentence 2"),
        *(", page 2, sentence 1", ", page 2, sentence 2"),
    ]
    assert places["notes.md"] == [", sentence 1", ", sentence 2"]
    (citation,) = answer.citations
    pages = {"notes.md": None, "contract.pdf": 2 if citation.cited_start > 80 else 1}
    assert citation.page == pages[citation.document]
    text = next(d.text for d in documents if d.name == citation.document)
    assert text[citation.cited_start : citation.cited_end] == citation.cited_text


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("scan.pdf", None, "holds no text. It holds pictures of text, perhaps"),
        ("broken.pdf", b"%PDF-1.4 nothing", "is a damaged PDF"),
        ("old.doc", b"\xd0\xcf\x11\xe0", "Save it as one of these"),
        ("table.xlsx", b"PK\x03\x04....", "is no Word document"),
        ("empty.txt", b" \n", "holds no text."),
    ],
)
def test_what_cannot_be_read_is_told(
    tmp_path: Path, name: str, content: bytes | None, sentence: str
) -> None:
    if content is None:
        write_pdf(tmp_path / name, [[]])
    else:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=sentence):
        read_document(str(tmp_path / name))


def test_standard_input_may_be_a_pdf(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Input:
        buffer = io.BytesIO((folder / "contract.pdf").read_bytes())

    monkeypatch.setattr("sys.stdin", Input)
    (document,) = read_documents(["-"])
    assert (document.name, len(document.pages)) == ("standard input", 2)


def test_files_that_are_not_there(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no such file"):
        read_documents(["nowhere/*.txt"])
    with pytest.raises(FileError, match="There is no file"):
        read_document("nowhere.txt")
    with pytest.raises(InputError, match="holds no document: names end in"):
        read_documents([str(tmp_path)])
    assert [d.name for d in read_documents([str(folder / "*.md")] * 2)] == ["notes.md"]


def test_a_file_where_a_text_is_meant_is_read(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    (folder / "sentence.txt").write_text("the key to the cabinets\n", encoding="utf-8")
    for arguments, words in (
        (["sentence.txt"], "cabinets"),
        (["--text", "sentence.txt"], "sentence.txt"),
    ):
        assert _run(["explain", *arguments, "--no-check", "--json"]) == 0
        captured = capsys.readouterr()
        assert words in captured.out
        assert ("reading the file 'sentence.txt'" in captured.err) is (words != "sentence.txt")
    (folder / "sentence.txt").unlink()


def test_documents_of_two_names_are_equal_without_pages() -> None:
    assert Document("a", "text") == Document("a", "text", ())


def test_passages_that_fit_are_kept_in_their_order_and_marked(tmp_path: Path) -> None:
    pytest.importorskip("bm25s")
    model = tiny_decoder()
    limit = model.facts.max_length
    assert limit is not None
    filler = "\n\n".join(["the author is old ."] * limit)
    texts = Document("a.pdf", f"{filler}\n\nthe cabinets are here .\n\n{filler}", (0, 30, 60))
    with pytest.raises(TokensError, match="--select-passages"):
        attnflow.ask(model, "the cabinets", [texts], max_new_tokens=3)
    (short,) = attnflow.select_passages(model, "the cabinets", [texts], max_new_tokens=3)
    assert "the cabinets are here ." in short.text
    assert short.passages is not None
    kept, count = short.passages
    assert (0 < kept < count, count) == (True, 2 * limit + 1)
    answer = attnflow.ask(model, "the cabinets", [short], answer="the author", check=False)
    assert answer.lines[-1].endswith(f"(BM25) found: {kept} of {count} of a.pdf.")
    assert answer.result.provenance["selection"] == [["a.pdf", kept, count]]


def test_a_result_prints_as_sentences(tmp_path: Path) -> None:
    result = attnflow.explain(None, "the keys to the cabinet")
    first, *others = str(result).splitlines()
    assert first.startswith("The model says plural (")
    assert any("“plural” draws on “" in line for line in others)
    assert repr(result).startswith("<Attribution 6 layers")
    assert len(repr(result.top(1)[0])) < 40
    both = attnflow.explain(None, ["the keys", "the key"], check=False)
    assert [each.prediction.label for each in both] == ["plural", "singular"]
    written = attnflow.generate(
        tiny_decoder(), "the keys", completion=" the author is", check=False
    )
    assert str(written).splitlines()[0] == "the author is"
    pytest.importorskip("matplotlib")
    assert written.plot().get_xlabel() is not None  # every token beside every source
