"""The commands of ``leasedkeyq``, one module for each group of them.

`look` shows what is there, `act` changes single items, `bulk` many of them, `control` lanes and
schedules. `leasedkeyq.cli.app` knows by name where each command is, and imports its module only
when it is called: so importing a module here must be quick, and needs click. What is slow to
import, such as stores and rich, is imported by the functions that use it. Begin with `look`.
"""
