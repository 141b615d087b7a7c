"""Kerberos for a Hive Metastore: SASL's mechanism GSSAPI (RFC 4752), through `gssapi` (extra `kerberos`).

The ticket is the user's: of the cache that KRB5CCNAME names, or made from the keytab of KRB5_CLIENT_KTNAME."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from phantombase.timeline.errors import StorageError, UsageError

SASL, PRINCIPAL = "hive.metastore.sasl.enabled", "hive.metastore.kerberos.principal"
_FORM = re.compile(r"([^/@\s]+)/([^/@\s]+)@([^/@\s]+)")
_AUTH, _INTEGRITY, _PRIVACY = 1, 2, 4
"""Layers of RFC 4752: auth, auth-int and auth-conf."""
_LARGEST = 0xFFFFFF
_LOGIN = "Run kinit, or name a keytab in KRB5_CLIENT_KTNAME; KRB5CCNAME names the cache of tickets."
_TODO = {
    -1765328352: _LOGIN,  # the ticket has expired
    -1765328243: _LOGIN,  # there is none
    -1765328189: _LOGIN,
    -1765328377: f"Check the principal of the metastore ({PRINCIPAL}): _HOST is the host as the catalog names it.",
    -1765328347: "Set the clocks of this host, the metastore and the KDC: they may differ by five minutes.",
    -1765328228: "Check the KDC of the realm in krb5.conf, and that it runs.",
}
"""By the code of Kerberos (krb5.h)."""


def check_principal(text: str, whole: str) -> str:
    """A principal as it is. UsageError: not one of a service."""
    if _FORM.fullmatch(text) is None:
        raise UsageError(
            "not the Kerberos principal of a Hive Metastore",
            expected="SERVICE/HOST@REALM, such as hive/_HOST@EXAMPLE.COM",
            found=whole,
            todo=f"Copy {PRINCIPAL} of hive-site.xml.",
        )
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class Kerberos:
    """How the transports of thriftpy2 are made. `principal`: of the server, whose `_HOST` is `host`. `shown`: of the
    metastore, for messages. `answer_ms`: the longest wait for an answer once both sides know each other."""

    principal: str
    host: str
    shown: str
    answer_ms: int

    def get_transport(self, socket: Any) -> Any:
        """UsageError: the package is missing."""
        from thriftpy2.transport import TSaslClientTransport

        try:
            import gssapi
        except ImportError as error:
            raise UsageError(
                "a Hive Metastore with Kerberos needs the package gssapi",
                found=str(error),
                todo="Install it: pip install 'phantombase[kerberos]'; on Linux its build needs Kerberos' headers "
                "(libkrb5-dev, krb5-devel).",
            ) from error
        made: Any = TSaslClientTransport
        return made(lambda: _Session(gssapi, self, socket), "GSSAPI", socket)


class _Session:
    """What thriftpy2 asks of a SASL library."""

    def __init__(self, gssapi: Any, how: Kerberos, socket: Any) -> None:
        self._gssapi, self._how, self._socket, self._layer = gssapi, how, socket, 0
        flags = gssapi.RequirementFlag
        with self._refused():
            self._context = gssapi.SecurityContext(
                name=gssapi.Name(
                    how.principal.replace("/_HOST@", f"/{how.host.lower()}@"), gssapi.NameType.kerberos_principal
                ),
                usage="initiate",
                mech=gssapi.MechType.kerberos,
                flags=flags.mutual_authentication | flags.integrity | flags.confidentiality,
            )

    @contextmanager
    def _refused(self) -> Iterator[None]:
        GSSError = self._gssapi.exceptions.GSSError
        try:
            yield
        except GSSError as error:
            said = error.get_all_statuses(error.min_code, False) or error.get_all_statuses(error.maj_code, True)
            raise StorageError(
                "Kerberos gives no session with the Hive Metastore",
                path=self._how.shown,
                found=", ".join(said),
                todo=_TODO.get(
                    error.min_code - 2**32, "`kvno` with the principal of the metastore shows what the KDC says."
                ),
            ) from error

    def start(self, mechanism: str) -> tuple[bool, str, bytes]:
        with self._refused():
            return True, mechanism, self._context.step()

    def step(self, challenge: bytes) -> tuple[bool, bytes]:
        """The last one chooses a layer: the strongest that the server offers."""
        with self._refused():
            if not self._context.complete:
                return True, self._context.step(challenge) or b""
            offer = int.from_bytes(self._context.unwrap(challenge).message, "big")
            self._layer = next((one for one in (_PRIVACY, _INTEGRITY, _AUTH) if offer >> 24 & one), 0)
            self._most = self._context.get_wrap_size_limit(offer & _LARGEST, self._layer == _PRIVACY) or 1
            self._socket.set_timeout(self._how.answer_ms)
            mine = self._layer << 24 | (_LARGEST if self._layer != _AUTH else 0)
            return True, self._context.wrap(struct.pack(">I", mine), False).message

    def encode(self, data: bytes) -> tuple[bool, bytes]:
        """False: the server has not shown who it is. One frame holds no more than the server takes."""
        if self._layer in (0, _AUTH):
            return self._layer == _AUTH, data
        with self._refused():
            parts = (data[start : start + self._most] for start in range(0, len(data), self._most))
            wrapped = [self._context.wrap(part, self._layer == _PRIVACY).message for part in parts]
        return True, b"".join(struct.pack(">I", len(one)) + one for one in wrapped)

    def decode(self, frame: bytes) -> tuple[bool, bytes]:
        with self._refused():
            found = self._context.unwrap(frame[4:])
        return found.encrypted or self._layer != _PRIVACY, found.message

    def getError(self) -> str:
        return "the server has not shown by Kerberos who it is"
