"""Models whose true sources are known: how often does each method find one?"""
