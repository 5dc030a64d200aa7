"""The doors of the server for clients that people have: each reads one API's request and writes its
answer, with citations in the form that its clients show. All of them render `Citation` records.
"""
