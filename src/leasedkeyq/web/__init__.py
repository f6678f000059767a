"""The web page: what happens in the queues of one or several stores, and what to do about it.

`dashboard` makes an ASGI application of it, to be mounted in another one or served by
`leasedkeyq web`. Begin with `app.py`, which holds the application together. `access/` is who
may see and do what, `pages/` has one module for each group of screens, `visit.py` is what such a
module is given, `screens.py` how it says which screens it has. `poller.py` looks at a store once
for all who have a page open. `charts.py` draws, `words.py` writes numbers and spans for people.

It shows what `operations` finds out, and asks it to act. Only `cli` may import it.
"""

from leasedkeyq.web.access.users import User, hash_password

try:
    from leasedkeyq.web.app import Dashboard, dashboard
except ModuleNotFoundError as missing:
    if (missing.name or "").partition(".")[0] not in ("starlette", "sse_starlette", "jinja2"):
        raise
    raise ModuleNotFoundError(
        f"the web page needs {missing.name}, which is not installed; "
        'pip install "leasedkeyq[web]" brings it',
        name=missing.name,
    ) from None

__all__ = ["dashboard", "Dashboard", "User", "hash_password"]
