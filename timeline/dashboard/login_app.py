"""What people get who have not shown the token: the form that asks for it."""

from __future__ import annotations

import time

from ..service.access import COOKIE, SESSION_S, Access
from ..service.asgi import Receive, Refused, Scope, Send, form_of, send_bytes, send_error, send_text
from .pages import login_page, style

LOGIN = "/login"

POLICY = (
    (b"content-security-policy", b"default-src 'none'; style-src 'self'; base-uri 'none'; form-action 'self'; "
     b"frame-ancestors 'none'"),
    (b"referrer-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
)  # fmt: skip
HTML = b"text/html; charset=utf-8"


class LoginApp:
    """A form of one field. The right token makes a cookie; a program sends `Authorization: Bearer` instead."""

    def __init__(self, access: Access) -> None:
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._answer(scope, receive, send)
        except Exception as error:
            await send_error(scope, send, error)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        path, method = scope["path"], scope["method"]
        if path == "/page.css" and method in ("GET", "HEAD"):
            await send_bytes(send, style(), b"text/css; charset=utf-8")
        elif path == LOGIN and method == "POST":
            given = await form_of(receive)
            if not self._access.is_token(given.get("token", "").strip()):
                await send_bytes(send, login_page(wrong=True).encode(), HTML, POLICY, status=403)
                return
            cookie = f"{COOKIE}={self._access.session(time.time())}; HttpOnly; SameSite=Strict; Path=/; "
            set_cookie = (b"set-cookie", f"{cookie}Max-Age={SESSION_S}".encode())
            await send_text(send, 303, "welcome", [(b"location", b"/"), set_cookie])
        elif method not in ("GET", "HEAD"):
            raise Refused(401, "this needs the token")
        elif path == LOGIN:
            await send_bytes(send, login_page().encode(), HTML, POLICY)
        elif path == "/" or path.startswith("/t/") or path == "/fleet":
            await send_text(send, 303, "log in first", [(b"location", LOGIN.encode())])
        else:
            await send_text(send, 401, "this needs the token", [(b"www-authenticate", b"Bearer")])
