"""The web page: what happens in the queues of one or several stores, and what to do about it.

It shows what `operations` finds out, and asks it to act. Only `cli` may import it.
"""
