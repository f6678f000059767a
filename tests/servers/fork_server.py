"""A server that forks processes for tests, with all that they import."""

import multiprocessing
from multiprocessing.context import ForkServerContext


def fork_server() -> ForkServerContext:
    """Of which to start processes.

    To import the package takes a new process a quarter of a second, and a fork nothing. The list
    is one for all tests, as a process has one such server.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        [
            "leasedkeyq.testing.processes",
            "leasedkeyq.engines.file.store",
            "leasedkeyq.engines.sqlite.store",
            "leasedkeyq.engines.postgres.store",
            "leasedkeyq.engines.redis.store",
            "leasedkeyq.lanes",
            "leasedkeyq.repository",
            "yaml",
        ]
    )
    return context
