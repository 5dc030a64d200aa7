"""The pipeline under every door: a loaded model, an input and a method to a result."""
