"""Other programs at the file of a repository: nothing that anybody wrote is lost silently.

Editors that save by rename, with a backup, in place and slowly, and a script with PyYAML, beside
two processes of a repository, of which one may be killed again and again. Some seconds, and minutes
under ``TORTURE=1``.
"""

import os
from pathlib import Path

import pytest

from tests.engines.file.programs import SAVES, run_programs

TORTURE = os.environ.get("TORTURE") == "1"
SECONDS = 60.0 if TORTURE else 5.0


@pytest.mark.filterwarnings("ignore::leasedkeyq.engines.file.store.FileStoreWarning")
@pytest.mark.parametrize("kills", [False, True])
@pytest.mark.parametrize("seed", range(5 if TORTURE else 1))
def test_other_programs_beside_repositories(tmp_path: Path, seed: int, kills: bool) -> None:
    written, found, aside = run_programs(tmp_path, SECONDS, seed, kills=kills)
    for kind in SAVES:
        assert [name for name in written if name.startswith(f"edit-{kind}-")]
    # What the repositories acknowledged is in the document, whatever others did.
    missing = written - found
    assert not [name for name in missing if name.startswith("work-")]
    assert not [name for name in missing if not any(name in text for text in aside)]
