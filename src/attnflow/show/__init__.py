"""A result for people: terminal, static HTML, figures, the viewer and its page."""
