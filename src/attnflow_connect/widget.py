"""Notebooks: the viewer as a widget that hands the statement that is clicked to Python.

>>> import attnflow
>>> from attnflow.testing import tiny_decoder
>>> widget = AnswerWidget(attnflow.ask(tiny_decoder(), "the keys", ["the author ."], answer="the"))
>>> widget.number = 0  # as a click does
>>> widget.statement.text
'the'
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anywidget
import traitlets

from attnflow.attribution.passages import Citation, Statement
from attnflow.explainers.answers import Answer


class AnswerWidget(anywidget.AnyWidget):
    """The viewer of an answer. `statement` is the one that was clicked last; None before.

    `widget.observe(lambda change: print(change.new), "statement")` calls for each click.
    """

    _esm = Path(__file__).with_name("widget.js").read_text(encoding="utf-8")
    html = traitlets.Unicode().tag(sync=True)
    height = traitlets.Int(760).tag(sync=True)
    number = traitlets.Int(None, allow_none=True).tag(sync=True)
    statement = traitlets.Instance(Statement, allow_none=True)

    def __init__(self, answer: Answer, **traits: Any) -> None:
        super().__init__(html=answer.to_html(), **traits)
        self.answer = answer

    @property
    def citations(self) -> tuple[Citation, ...]:
        """The citations of the statement that was clicked."""
        clicked = self.statement
        if clicked is None:
            return ()
        return tuple(each for each in self.answer.citations if each.start == clicked.start)

    @traitlets.observe("number")
    def _choose(self, change: Any) -> None:
        self.statement = None if change.new is None else self.answer.statements[change.new]
