"""Commands: their types and checks, their `command_options`, and the `resources` they are given.

`submit_terms` are what a caller says with one of them. Begin with `command`.
"""
