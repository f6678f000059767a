"""The Flask page of the docs, as it is printed, with a worker process on SQLite."""

import importlib.util
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_worker import worker

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "flask_progress"
PATIENCE = 60.0


@pytest.fixture
def reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("STORE", f"sqlite:///{tmp_path}/reports.db")
    monkeypatch.setenv("SECONDS_PER_PAGE", "0.3")
    spec = importlib.util.spec_from_file_location("reports", EXAMPLE / "reports.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "reports", module)
    spec.loader.exec_module(module)
    return module


def until_shown(client: Any, place: str, wanted: str) -> str:
    """The page, once it shows something."""
    deadline = time.monotonic() + PATIENCE
    while wanted not in (text := client.get(place).text):
        assert time.monotonic() < deadline, text
        time.sleep(0.05)
    return str(text)


def test_a_page_submits_and_shows_progress(reports: Any) -> None:
    client = reports.app.test_client()
    try:
        place = client.post("/reports/11").location
        assert "The report is pending." in client.get(place).text
        cancelled = client.post("/reports/12").location
        assert client.post(f"{cancelled}/cancel").location == cancelled
        assert "The report is cancelled." in client.get(cancelled).text
        assert client.get("/reports/nonsense").status_code == 404
        with worker(EXAMPLE, "reports:manager") as process:
            text = until_shown(client, place, "<progress value=")
            assert "page " in text
            text = until_shown(client, place, "The report is completed.")
            assert "All is well in month 11." in text
            assert "refresh" not in text
            assert process.end(signal.SIGTERM) == 0
    finally:
        reports.manager.sync.close()
