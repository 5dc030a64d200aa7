"""Table 3 of the paper, on any sequence classifier and GLUE data."""
