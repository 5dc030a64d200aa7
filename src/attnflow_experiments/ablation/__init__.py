"""Which attribution of a language model agrees with ablations? Facts, running text, documents."""
