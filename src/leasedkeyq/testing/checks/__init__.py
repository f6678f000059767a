"""The checks of the conformance kit, by theme: each says one thing that every store does.

A check is a coroutine that is given stores and asserts. Begin with `puts`; a new check is found
by its name, and needs a broken store in the tests that it finds.
"""
