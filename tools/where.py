"""Say which leasedkeyq is under test, and fail when it is not the installed one."""

import sys
from pathlib import Path

import leasedkeyq


def main(env_dir: str) -> int:
    found = Path(leasedkeyq.__file__).resolve().parent
    if not found.is_relative_to(Path(env_dir).resolve()):
        print(f"leasedkeyq is imported from {found}, which is not inside {env_dir}")
        return 1
    python = ".".join(map(str, sys.version_info[:3]))
    print(f"leasedkeyq {leasedkeyq.__version__} from its wheel, Python {python}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
