"""Ordinary documents of many kinds: does ask() name the one that an answer came from?"""
