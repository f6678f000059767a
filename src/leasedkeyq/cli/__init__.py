"""The command line: ``python -m leasedkeyq``.

`worker` runs the lanes of a manager until it is told to stop, `worker_log` writes its log. It uses
the public names only. Begin with `worker`.
"""
