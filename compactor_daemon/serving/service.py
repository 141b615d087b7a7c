"""Starts the timeline service inside a daemon."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from prometheus_client import CollectorRegistry

from phantombase.timeline.dashboard.actions.action_app import ActionApp
from phantombase.timeline.dashboard.actions.orders import CommandSettings
from phantombase.timeline.dashboard.actions.runner import Runner, installed
from phantombase.timeline.dashboard.login_app import LoginApp
from phantombase.timeline.dashboard.people_app import PeopleApp
from phantombase.timeline.service.access import Access
from phantombase.timeline.service.run import Pages, ServeOptions, Service
from phantombase.timeline.service.served_tables import ServedTables

from ..daemon.loop import Daemon
from ..daemon.table_on_storage import Settings
from ..zookeeper.session import ZooKeeperOptions, zookeeper_session
from .crew import DaemonCrew


@contextmanager
def service_of(
    daemon: Daemon,
    settings: Settings,
    options: ServeOptions,
    *,
    token: str | None,
    zookeeper: ZooKeeperOptions | None,
    registry: CollectorRegistry,
    commands: CommandSettings,
    allow_actions: bool,
) -> Iterator[str]:
    """Serves the daemon's tables from entry to exit, also those that it finds later; the address. `commands`: what
    commands about them must be given; `allow_actions`: pages have buttons for them.

    UsageError: the port is taken, or see `Access`. PhantombaseError: ZooKeeper does not answer.
    """
    with nullcontext() if zookeeper is None else zookeeper_session(zookeeper) as session:
        crew = DaemonCrew(daemon, settings, session)

        def pages(tables: ServedTables, access: Access) -> Pages:
            runner = Runner(installed(), settings.storage_options) if allow_actions else None
            actions = None if runner is None else ActionApp(access, runner, commands)
            people = PeopleApp(tables, crew=crew, registry=registry, settings=commands, actions=actions)
            return Pages(pages=people, login=LoginApp(access))

        service = Service(
            paths=(),
            options=options,
            storage_options=settings.storage_options,
            token=token,
            pages=pages,
            found=lambda: daemon.paths,
            clock=settings.clock,
        )
        with service.beside() as address:
            yield address
