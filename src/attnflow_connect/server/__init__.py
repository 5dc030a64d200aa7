"""The served page: its requests, its queue of work, the models it offers, and who may call."""
