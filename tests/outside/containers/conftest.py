"""An engine, the images and the fleet of `deploy/compose.yaml`, for the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from testcontainers.core.config import testcontainers_config

from tests.outside.containers.compose import Compose, compose_command
from tests.outside.containers.engine import NoContainersError, running_engine
from tests.outside.containers.images import Images, make_images, remove_leftovers


@pytest.fixture(scope="session")
def engine() -> Iterator[str]:
    """The address of an engine; `DOCKER_HOST` says it too."""
    with ExitStack() as stack:
        try:
            host = stack.enter_context(running_engine())
        except NoContainersError as error:
            pytest.skip(f"no containers here: {error}")
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setenv("DOCKER_HOST", host)
        # The cleaner of testcontainers is an image that cannot be pulled everywhere.
        patch.setattr(testcontainers_config, "ryuk_disabled", True)
        remove_leftovers(host)
        stack.callback(remove_leftovers, host)
        yield host


@pytest.fixture(scope="session")
def images(engine: str) -> Images:
    """The images, made from this tree."""
    try:
        return make_images(engine)
    except NoContainersError as error:
        pytest.skip(f"no images here: {error}")


@pytest.fixture(scope="session")
def project(engine: str, images: Images, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Compose]:
    """`deploy/compose.yaml`, nothing started."""
    try:
        command = compose_command()
    except NoContainersError as error:
        pytest.skip(f"no Compose here: {error}")
    with Compose(command, engine, images, tmp_path_factory.mktemp("compose")) as started:
        yield started


@pytest.fixture
def compose(project: Compose, tmp_path: Path) -> Iterator[Compose]:
    """`deploy/compose.yaml` with ZooKeeper's three servers running, and room for tables in `compose.tables`."""
    project.tables = tmp_path
    project.start_zookeeper()
    yield project
    project.remove_daemons()
