"""Who gave the order? Injected instructions, poisoned passages, supports of several hops."""
