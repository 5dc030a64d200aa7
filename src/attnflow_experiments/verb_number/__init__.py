"""Tables 1 and 2 of the paper, on the embedded model."""
