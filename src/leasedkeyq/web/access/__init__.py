"""Who may see and do what on the web page.

`users` are those who log in, with the hashes of their passwords, `sessions` the signed cookies by
which they stay logged in, `login_limit` slows down guessing. `guard` stands before every request.
Only `web` imports this folder. Begin with `guard`.
"""
