"""The command line: ``leasedkeyq``, which is ``python -m leasedkeyq``.

`worker` runs the lanes of a manager until it is told to stop, `worker_log` writes its log. With
several processes, `supervisor` starts, watches and replaces them, and `supervised` is the side of
the worker; `source_watch` sees changes of sources. `health` answers over HTTP what `probe` finds
out about a worker, with `metrics_text` for Prometheus. It uses public names only, so that a program
can do what it does; only ``__main__`` imports it. Begin with `worker`.
"""
