"""The command line: ``python -m leasedkeyq``.

`worker` runs the lanes of a manager until it is told to stop, `worker_log` writes its log. It uses
public names only, so that a program can do what it does; only ``__main__`` imports it. Begin with
`worker`.
"""
