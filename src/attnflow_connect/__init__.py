"""attnflow where people already work: over HTTP, and in frameworks.

`attnflow serve` comes from here, by entry point: `server` is the page, `doors` answers clients of
OpenAI, Anthropic and Cohere. Each module beside them renders `Citation` records in the form of one
framework, and has an extra of its own. Nothing is decided here: `attnflow.ask` says what an answer
rests on.

Each start of the command line imports this file, so it imports nothing.
"""
