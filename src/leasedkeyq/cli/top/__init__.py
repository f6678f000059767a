"""``leasedkeyq top``: a live view of a store that fills the terminal.

`terminal` takes the terminal and gives it back, and reads keys. `poller` is the one part that asks
the store. `state` is what is shown and what is selected, `screen` draws it: a pure function of
that and of the size of the terminal. `app` brings them together. Begin with `app`.
"""
