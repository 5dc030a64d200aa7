"""From the documents or from memory: is the verdict on an answer right?"""
