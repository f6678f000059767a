"""What the documents say about stores: the table of capabilities, and the store of the guide."""

import atexit
import importlib.util
import re
import shutil
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from leasedkeyq import connect, schemes

DOCS = Path(__file__).resolve().parents[2] / "docs"
ROW = re.compile(r"^\| `(connect\(.*?\))` \| `(\w+)` \| `(yes|no)` \|", re.MULTILINE)
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def table() -> dict[str, tuple[str, str]]:
    text = (DOCS / "reference/stores.md").read_text(encoding="utf-8")
    return {call: (durability, shared) for call, durability, shared in ROW.findall(text)}


@pytest.mark.parametrize("call", table())
def test_the_table_of_capabilities_is_right(call: str, tmp_path: Path) -> None:
    names: dict[str, Any] = {"connect": connect}
    capabilities = eval(call.replace("/path/", f"{tmp_path}/"), names).capabilities
    shared = "yes" if capabilities.cross_process else "no"
    assert (capabilities.durability, shared) == table()[call]
    assert capabilities.extends_apart, "the page says so below the tables"
    assert capabilities.minute_series == ("file:" not in call), "the page says so, too"


def test_the_table_of_capabilities_has_every_store() -> None:
    text = (DOCS / "reference/stores.md").read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if line.startswith("| `") and "://`" in line]
    servers = {scheme for row in rows for scheme in re.findall("`([a-z+]+)://`", row)}
    files = {call.split('"')[1].partition(":")[0] for call in table()}
    assert files | servers == set(schemes())
    assert not files & servers


def guide() -> ModuleType:
    """The store and the tests of the guide, as a module that other processes can import."""
    text = (DOCS / "howto/write-a-store.md").read_text(encoding="utf-8")
    blocks = [block for block in BLOCK.findall(text) if "class " in block]
    folder = Path(tempfile.mkdtemp(prefix="leasedkeyq-guide-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = folder / "snapshot_store_of_the_guide.py"
    path.write_text("\n".join(blocks), encoding="utf-8")
    sys.path.append(str(folder))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


TestSnapshotStore = guide().TestSnapshotStore
