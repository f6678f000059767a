"""A Flask page that has reports made in the background, and shows how far they are.

Needs flask. With STORE set to the URL of a store, or on a SQLite file in this folder:

    leasedkeyq worker reports:manager
    flask --app reports run

The page and the workers are processes of their own; any number of each may run.
"""

import asyncio
import os

from flask import Flask, redirect, render_template_string, url_for
from flask.typing import ResponseReturnValue

from leasedkeyq.lanes import (
    CommandLostError,
    LaneConfig,
    QueueManagerBuilder,
    UnknownCommandError,
    current_command,
)

PAGES = 4
SECONDS = float(os.environ.get("SECONDS_PER_PAGE", "1"))

manager = (
    QueueManagerBuilder()
    .with_lane("reports", LaneConfig(0, 2, timeout=600, keep_results=3600), 0)
    .with_storage(os.environ.get("STORE", "sqlite:///reports.db"))
    .build()
)


@manager.command("report", lane="reports")
async def report(month: int) -> str:
    for page in range(1, PAGES + 1):
        await asyncio.sleep(SECONDS)  # something that takes its time
        current_command().progress(page / PAGES, f"page {page} of {PAGES}")
    return f"All is well in month {month}."


app = Flask(__name__)


@app.post("/reports/<int:month>")
def order(month: int) -> ResponseReturnValue:
    handle = manager.sync.submit(report(month))
    return redirect(url_for("show", command=handle.id), 303)


@app.get("/reports/<command>")
def show(command: str) -> ResponseReturnValue:
    try:
        handle = manager.sync.handle(command)
        progress = handle.progress()
        status = handle.status
        result = handle.result(0) if status == "completed" else None
    except (UnknownCommandError, CommandLostError):
        return "There is no such report.", 404
    return render_template_string(PAGE, status=status, progress=progress, result=result)


@app.post("/reports/<command>/cancel")
def cancel(command: str) -> ResponseReturnValue:
    manager.sync.handle(command).cancel()
    return redirect(url_for("show", command=command), 303)


PAGE = """<!doctype html>
<title>Report</title>
{% if status in ("pending", "scheduled", "running") %}
<meta http-equiv="refresh" content="1">
{% endif %}
<p>The report is {{ status }}.</p>
{% if progress %}
<p><progress value="{{ progress.fraction }}"></progress> {{ progress.text }}</p>
{% endif %}
{% if result %}<p>{{ result }}</p>{% endif %}
"""
