"""`python -m tests.torture.releases`: what a release leaves behind for later ones.

freeze          write the copy of today's version of each format that has none
freeze --again  the copies of today's versions anew: only as long as no release has them
download        the sdist of the last release into build/releases, if there is one
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.torture.releases.copies import FORMATS
from tests.torture.releases.other_release import download


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.torture.releases",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("command", choices=("freeze", "download"))
    parser.add_argument("--again", action="store_true", help="replace the copies of today")
    options = parser.parse_args(arguments)
    if options.command == "download":
        print(download() or "there is no release of this implementation yet")
        return 0
    for one in FORMATS.values():
        if one.kept() is not None and not options.again:
            print(f"{one.name}: version {one.version} has a copy")
            continue
        with tempfile.TemporaryDirectory() as folder:
            one.keep(one.make(Path(folder)))
        print(f"{one.name}: wrote the copy of version {one.version}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
