"""Vision-language models: two towers and what joins them, as one layered graph."""
