"""Files of examples: which they are, how they become rows, and which column plays which part.

`rows` reads a file, a folder or a pattern; a `DataFile` is read from any row on; `find_column` says
which column holds the text, the prompt, the label. `read_documents` reads what a question is
asked over. Nothing here needs a model.
"""

from __future__ import annotations

from attnflow.data.documents import read_document, read_documents
from attnflow.data.files import FORMATS, DataFile, FileScan, Row
from attnflow.data.find import find_column, find_files, list_photos, name_subject, read_value, rows

__all__ = [
    "FORMATS",
    "DataFile",
    "FileScan",
    "Row",
    "find_column",
    "find_files",
    "list_photos",
    "name_subject",
    "read_document",
    "read_documents",
    "read_value",
    "rows",
]
