"""A KDC of MIT Kerberos (Debian's krb5-kdc) with a realm of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from phantombase.timeline.reachable import why_unreachable
from tests.support.servers.zookeeper_server import free_ports

PROGRAMS = ("krb5kdc", "kdb5_util", "kadmin.local", "kinit")
SBIN = "/usr/sbin"
REALM = "TESTS.PHANTOMBASE"
_CLIENT = """[libdefaults]
default_realm = {realm}
dns_lookup_kdc = false
dns_lookup_realm = false
dns_canonicalize_hostname = false
rdns = false
udp_preference_limit = 1
[realms]
{realm} = {{
 kdc = 127.0.0.1:{port}
}}
"""
_SERVER = """[kdcdefaults]
kdc_listen = 127.0.0.1:{port}
kdc_tcp_listen = 127.0.0.1:{port}
[realms]
{realm} = {{
 database_name = {folder}/principal
 key_stash_file = {folder}/stash
 acl_file = {folder}/acl
}}
"""


def path_of(program: str) -> str | None:
    return shutil.which(program, path=f"{os.environ.get('PATH', '')}:{SBIN}")


@dataclass(frozen=True, kw_only=True)
class Kdc:
    """A running one. `config`: what KRB5_CONFIG names."""

    folder: Path

    @property
    def config(self) -> Path:
        return self.folder / "krb5.conf"

    def keytab(self, principal: str) -> Path:
        """Of a new principal."""
        file = self.folder / f"{principal.replace('/', '_')}.keytab"
        for query in (f"addprinc -randkey {principal}", f"ktadd -k {file} {principal}"):
            self.run("kadmin.local", "-q", query)
        return file

    def log_in(self, principal: str, keytab: Path, cache: Path, *more: str) -> None:
        self.run("kinit", *more, "-c", str(cache), "-k", "-t", str(keytab), principal)

    def run(self, program: str, *words: str) -> None:
        found = path_of(program)
        assert found is not None
        subprocess.run([found, *words], env=self.environment(), check=True, capture_output=True, timeout=60)

    def environment(self) -> dict[str, str]:
        return os.environ | {"KRB5_CONFIG": str(self.config), "KRB5_KDC_PROFILE": str(self.folder / "kdc.conf")}


@contextmanager
def running_kdc(folder: Path) -> Iterator[Kdc]:
    """In a new folder. Needs `PROGRAMS`."""
    folder.mkdir()
    (port,) = free_ports(1)
    kdc = Kdc(folder=folder)
    kdc.config.write_text(_CLIENT.format(realm=REALM, port=port))
    (folder / "kdc.conf").write_text(_SERVER.format(realm=REALM, port=port, folder=folder))
    kdc.run("kdb5_util", "create", "-s", "-P", "secret", "-r", REALM)
    server = path_of("krb5kdc")
    assert server is not None
    with (folder / "out").open("wb") as out:
        process = subprocess.Popen([server, "-n"], env=kdc.environment(), stdout=out, stderr=subprocess.STDOUT)
        try:
            until = time.monotonic() + 60
            while why_unreachable([f"127.0.0.1:{port}"], port) is not None:
                assert process.poll() is None, (folder / "out").read_text()
                assert time.monotonic() < until, (folder / "out").read_text()
                time.sleep(0.05)
            yield kdc
        finally:
            process.kill()
            process.wait()
