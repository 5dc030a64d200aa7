"""While a language model writes: prompts, rollout rows beside the cache, the writer."""
