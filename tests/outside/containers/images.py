"""The images of the container tests: official ones where they can be pulled, else made from what is at hand.

    base         python:3.11-slim-bookworm, else a Debian made by debootstrap from this machine's package mirror
    daemon       deploy/Dockerfile on the base
    zookeeper    zookeeper:3.9, else `zookeeper_image/` on the daemons' image

What was made stays in the engine: the base under a tag of its recipe, the rest as layers."""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

import docker
from docker.errors import DockerException, ImageNotFound
from requests.exceptions import RequestException

from tests.outside.containers.engine import install, run_limited
from tests.support.places import ROOT

LABEL = "phantombase.tests"
"""On every container of these tests."""

PROJECT = "phantombase-tests-"
"""How the Compose projects of these tests begin."""

IMAGE_USER = 10001
"""Who runs in the daemons' image (deploy/Dockerfile)."""

_PYTHON = "python:3.11-slim-bookworm"
_ZOOKEEPER = "zookeeper:3.9"
_SUITE = "bookworm"
_BASE_PACKAGES = ("python3", "python3-venv", "ca-certificates")
_ASK_MAX_S = 20
_PULL_MAX_S = 300
_DEBOOTSTRAP_MAX_S = 600.0
_BUILD_MAX_S = 600
_CERTIFICATES = Path("etc/ssl/certs/ca-certificates.crt")
_TAKEN_OVER = (_CERTIFICATES, Path("etc/pip.conf"))
"""Files of this machine that tell pip where packages come from and whom to trust."""
_PIP = ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_TRUSTED_HOST", "PIP_CERT")


@dataclass(frozen=True, slots=True)
class Images:
    """Names of the images in the engine, and whether ZooKeeper's is the official one."""

    daemon: str
    zookeeper: str
    official_zookeeper: bool


def make_images(host: str) -> Images:
    """All images; NoContainersError when a base can neither be pulled nor made, BuildError when a Dockerfile fails."""
    base = _PYTHON if _pulled(host, _PYTHON) else _debian(host)
    arguments = {"BASE": base} | {name: os.environ[name] for name in _PIP if name in os.environ}
    daemon = _build(host, ROOT, "deploy/Dockerfile", "phantombase-tests", arguments)
    if _pulled(host, _ZOOKEEPER):
        return Images(daemon, _ZOOKEEPER, True)
    folder = Path(__file__).with_name("zookeeper_image")
    return Images(daemon, _build(host, folder, "Dockerfile", "phantombase-tests-zookeeper", {"BASE": daemon}), False)


def _pulled(host: str, name: str) -> bool:
    """Whether an official image is in the engine, pulled now if a registry answers soon."""
    asking = docker.DockerClient(base_url=host, timeout=_ASK_MAX_S)
    try:
        asking.images.get(name)
        return True
    except ImageNotFound:
        pass
    try:
        asking.images.get_registry_data(name)
        docker.DockerClient(base_url=host, timeout=_PULL_MAX_S).images.pull(name)
        return True
    except (DockerException, RequestException):
        return False


def _build(host: str, folder: Path, dockerfile: str, name: str, arguments: dict[str, str]) -> str:
    """Builds on the network of this machine, where package mirrors are known to be reachable."""
    client = docker.DockerClient(base_url=host, timeout=_BUILD_MAX_S)
    client.images.build(
        path=str(folder), dockerfile=dockerfile, tag=name, buildargs=arguments, network_mode="host", rm=True
    )
    return name


def _debian(host: str) -> str:
    """A Debian with Python, which knows the mirrors, certificates and pip.conf of this machine."""
    mirror = _mirror()
    taken = [(path, Path("/") / path) for path in _TAKEN_OVER if (Path("/") / path).exists()]
    recipe = repr((_SUITE, _BASE_PACKAGES, mirror, [(str(p), source.read_bytes()) for p, source in taken]))
    tag = hashlib.sha256(recipe.encode()).hexdigest()[:16]
    client = docker.DockerClient(base_url=host, timeout=_BUILD_MAX_S)
    name = f"phantombase-tests-base:{tag}"
    try:
        client.images.get(name)
        return name
    except ImageNotFound:
        pass
    install("debootstrap", ("debootstrap",))
    with tempfile.TemporaryDirectory(prefix="phantombase-base-") as folder:
        root, archive = Path(folder) / "root", Path(folder) / "root.tar"
        packages = f"--include={','.join(_BASE_PACKAGES)}"
        made = ["debootstrap", "--variant=minbase", packages, _SUITE, str(root), *mirror]
        run_limited(made, _DEBOOTSTRAP_MAX_S)
        for path, source in taken:
            shutil.copyfile(source, root / path)
        for downloaded in ("var/cache/apt/archives", "var/lib/apt/lists"):
            shutil.rmtree(root / downloaded)
            (root / downloaded).mkdir()
        run_limited(["tar", "-C", str(root), "--numeric-owner", "-cf", str(archive), "."], _DEBOOTSTRAP_MAX_S)
        client.api.import_image_from_file(str(archive), repository="phantombase-tests-base", tag=tag)
    return name


def _mirror() -> list[str]:
    """This machine's mirror of Debian, where it is one; else debootstrap's own default."""
    if "debian" not in platform.freedesktop_os_release().get("ID", ""):
        return []
    targets = run_limited(
        ["apt-get", "indextargets", "--format", "$(RELEASE) $(REPO_URI)", "Created-By: Packages"], _ASK_MAX_S
    )
    found = [line.partition(" ")[2] for line in targets.splitlines() if line.startswith(f"{_SUITE} ")]
    return found[:1]


def remove_leftovers(host: str) -> None:
    """Removes containers and networks of these tests, also those of a run that was killed."""
    client = docker.DockerClient(base_url=host, timeout=_ASK_MAX_S)
    for container in client.containers.list(all=True, filters={"label": LABEL}):
        container.remove(force=True, v=True)
    for network in client.networks.list():
        if network.name.startswith(PROJECT):
            network.remove()
