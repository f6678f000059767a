"""A Django project with the page of its queues at /queues, for its own staff."""

import os
from typing import Any

from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "settings")
django_app = get_asgi_application()  # before what follows: it sets Django up

from django.contrib import auth  # noqa: E402
from django.contrib.sessions.backends.db import SessionStore  # noqa: E402
from django.http import HttpRequest  # noqa: E402
from starlette.applications import Starlette  # noqa: E402
from starlette.requests import Request  # noqa: E402
from starlette.routing import Mount  # noqa: E402

from leasedkeyq.web import User, dashboard  # noqa: E402

users: Any = auth  # Django says little about its types


async def authenticate(request: Request) -> User | None:
    """Staff of Django may look, and superusers change things; None: somebody else."""
    asked: Any = HttpRequest()
    asked.session = SessionStore(request.cookies.get("sessionid"))
    user = await users.aget_user(asked)
    if not user.is_active or not user.is_staff:
        return None
    return User(name=user.get_username(), role="operator" if user.is_superuser else "viewer")


queues = dashboard(
    os.environ.get("JOBS", "sqlite:///jobs.db"),
    authenticate=authenticate,
    login_url="/admin/login/?next=/queues/",
)
application = Starlette(routes=[Mount("/queues", app=queues), Mount("/", app=django_app)])
