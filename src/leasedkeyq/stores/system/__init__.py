"""What stores ask of the operating system: files that change, forks, room on a disk, clocks.

`holder` is the name of this process in leases. Begin with `inotify`.
"""
