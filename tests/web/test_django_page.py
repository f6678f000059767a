"""The example that mounts the page in a Django project, with its users, as a program of its own."""

import os
import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "django_page"

PROGRAM = """
import asyncio, http.cookies
import httpx
from asgi import application
from django.contrib.auth.models import User
from django.core.management import call_command
from django.test import Client

call_command("migrate", verbosity=0)
User.objects.create_superuser("ada", password="x")
User.objects.create_user("eve", password="x", is_staff=True)
User.objects.create_user("bob", password="x")

def cookie(name):
    client = Client()
    assert client.login(username=name, password="x")
    return {"sessionid": client.cookies["sessionid"].value}

async def look(name, cookies):
    transport = httpx.ASGITransport(application)
    async with httpx.AsyncClient(
        transport=transport, base_url="http://localhost", cookies=cookies
    ) as client:
        answer = await client.get("/queues/", headers={"accept": "text/html"})
        if answer.has_redirect_location and "/s/" in answer.headers["location"]:
            answer = await client.get(answer.headers["location"])
        print(name, answer.status_code, answer.headers.get("location", ""))
        admin = await client.get("/admin/")
        print("  admin", admin.status_code)

given = {name: cookie(name) for name in ("ada", "eve", "bob")} | {"nobody": {}}

async def main():
    for name, cookies in given.items():
        await look(name, cookies)

asyncio.run(main())
"""


def test_users_of_django_see_the_page(tmp_path: Path) -> None:
    paths = os.pathsep.join([str(EXAMPLE), *(path for path in sys.path if path)])
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": paths, "DJANGO_SETTINGS_MODULE": "settings"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "ada 200 "
    assert lines[2] == "eve 200 "
    for name, line in (("bob", lines[4]), ("nobody", lines[6])):
        assert line == f"{name} 303 /admin/login/?next=/queues/"
    assert lines[1] == "  admin 200", "Django itself answers beside it"
