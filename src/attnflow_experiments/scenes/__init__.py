"""Drawn scenes: does the answer of a vision-language model point at the object it is about?"""
