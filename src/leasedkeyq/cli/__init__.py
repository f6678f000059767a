"""The command line: ``python -m leasedkeyq``. `worker` runs the lanes of a manager."""
