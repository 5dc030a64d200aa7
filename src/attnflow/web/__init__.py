"""The served page, and the viewer that all pages share (`viewer/`: plain scripts, no build)."""
