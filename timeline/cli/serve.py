"""`timeline serve`: answers about tables over HTTP."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

from ..dashboard.actions import ActionApp, OrderRunner, StatusFleet, installed
from ..dashboard.orders import CommandSettings
from ..dashboard.people_app import LoginApp, PeopleApp
from ..errors import UsageError
from ..instants.clock_check import ClockOptions
from ..service.asgi import Access
from ..service.run import HttpService, ServeOptions, read_token
from ..service.served_tables import ServedTables
from ..storage.open_storage import full_path
from ..storage.storage_options import parse_pairs
from ..terminal.boundary import seconds
from ..terminal.command import StorageOption, command
from ..terminal.console import configure_logging
from .render import CLOCK, Timezone

_STORED = "phantombase.compactor_daemon.status.catalog"
"""What compactors know of a table by its files: a service has the verdict of `check`."""


@command
def serve(
    ctx: typer.Context,
    tables: Annotated[
        list[str], typer.Argument(metavar="TABLE...", help="Base paths of the tables to serve, and patterns of them.")
    ],
    options: ServeOptions,
    token_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A file with the token that pages, JSON and metrics ask for.")
    ] = None,
    slo: Annotated[
        float | None,
        typer.Option(
            parser=seconds(0), metavar="SECONDS", help="A compaction pending for longer makes its table late."
        ),
    ] = None,
    lock: Annotated[
        str | None,
        typer.Option(
            metavar="LOCK",
            help="The lock that all writers and schedulers of the tables share, as for `compactor-daemon schedule`; "
            "{name} in it is replaced by a table's name. Pages show its holder, and commands are given it.",
        ),
    ] = None,
    sole_writer: Annotated[
        bool, typer.Option(help="No other process writes to the tables: commands are given --sole-writer.")
    ] = False,
    allow_actions: Annotated[
        bool,
        typer.Option(
            "--allow-actions",
            help="Pages may schedule, unschedule and release by buttons. Needs --token-file, and --lock or "
            "--sole-writer.",
        ),
    ] = False,
    root: Annotated[
        str | None,
        typer.Option(metavar="FOLDER", help="The --root of the daemons that serve the tables; with --zookeeper."),
    ] = None,
    zookeeper: Annotated[
        str | None,
        typer.Option(metavar="HOSTS", help="ZooKeeper of these daemons: pages show which of them serves which table."),
    ] = None,
    timezone: Timezone = CLOCK.timezone,
    storage_option: StorageOption = None,
    log_json: Annotated[bool, typer.Option("--log-json", help="Log lines as JSON.")] = False,
) -> None:
    """Answer for tables over HTTP: Hudi writers use it as their remote file-system view.

    It listens on 127.0.0.1; elsewhere pages ask for a token, and Hudi's routes answer the networks of
    [b]--hudi-clients[/b] alone. It changes nothing in a table but the markers of pending writes, and those only
    with [b]--markers[/b]; with [b]--allow-actions[/b] its pages have buttons that run the commands.
    A table's state is kept in memory and loaded again when a writer shows a timeline that it does not know. A table
    that cannot be read stops no other.

    A browser shows in one word how each table is (ok, late, stuck, broken), worst first, and why;
    [b]/api/tables[/b] is the same as JSON.

    Writers of Hudi 0.15 and 1.2 need [b]hoodie.embed.timeline.server=false[/b],
    [b]hoodie.filesystem.view.type=REMOTE_FIRST[/b] and [b]hoodie.filesystem.view.remote.port[/b].

    [b]Examples[/b]
      timeline serve lake/trips lake/orders --port 26754
      timeline serve "/lake/*/orders_*"
      timeline serve "/lake/*" --root /lake --zookeeper zk1:2181
      timeline serve /data/trips --host 0.0.0.0 --token-file token
      timeline serve /data/t --token-file token --lock storage --allow-actions"""
    configure_logging(log_json, quiet=False)
    given = parse_pairs(storage_option)
    settings = CommandSettings(lock=lock, sole_writer=sole_writer, timezone=timezone)

    if (root is None) != (zookeeper is None):
        raise UsageError("--root and --zookeeper name a fleet together", todo="Give both, or none.")
    clock, fleet = ClockOptions(timezone=timezone), None
    stored = import_module(_STORED).StoredInfo(clock)  # by name: it stands above this package
    if root is not None and zookeeper is not None:
        configured = ["--config", str(file)] if (file := ctx.params.get("config")) else []
        fleet = StatusFleet(installed("--zookeeper"), [*configured, "--root", root, "--zookeeper", zookeeper], given)

    def pages(served: ServedTables, access: Access) -> tuple[PeopleApp, LoginApp]:
        actions = ActionApp(access, OrderRunner(installed(), given), settings) if allow_actions else None
        return PeopleApp(served, slo, settings=settings, actions=actions, fleet=fleet, stored=stored), LoginApp(access)

    def name_of(path: str) -> str | None:
        base = "" if root is None else f"{full_path(root).rstrip('/')}/"
        return path.removeprefix(base) if base and path.startswith(base) else None

    service = HttpService(
        paths=tables,
        options=options,
        storage_options=given,
        token=None if token_file is None else read_token(token_file),
        pages=pages,
        name_of=name_of,
        clock=clock,
    )
    service.run(on_ready=lambda address: typer.echo(f"listening at {address}"))
