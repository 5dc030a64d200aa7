"""Hugging Face transformers as a host: its attention, heads, images and generate()."""
