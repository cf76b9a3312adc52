"""python -m assets: fetch weights ahead of use, or list what there is."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from assets.console import ConsoleProgress
from assets.resolver import Resolver, default_resolver
from engine import leaving
from engine.leaving import Parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code (2 for a fault told in one line)."""
    parser = Parser(prog="python -m assets", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    fetch = commands.add_parser("fetch", help="fetch weights (those used by default)")
    fetch.add_argument("names", nargs="*", help="names as `list` shows them, or owner/name")
    fetch.add_argument("--all", action="store_true", help="every asset listed but hub models")
    commands.add_parser("list", help="what can be fetched, and what is here")
    options = parser.parse_args(arguments)
    code = leaving.run(lambda: _run(options))
    if code == leaving.INTERRUPTED:
        print("stopped: nothing half-fetched was kept", file=sys.stderr)
    return code


def _run(options: argparse.Namespace) -> int:
    resolver = default_resolver()
    if options.command == "list":
        _list(resolver)
    else:
        _fetch(resolver, options.names, options.all)
    return 0


def _fetch(resolver: Resolver, names: Sequence[str], everything: bool) -> None:
    manifest = resolver.manifest
    assets = manifest.assets if everything else manifest.defaults()
    wanted = list(names) if names else [asset.name for asset in assets]
    with ConsoleProgress() as progress:
        paths = {name: resolver.resolve(name, progress) for name in wanted}
    for name, path in paths.items():
        print(f"{name}: {path}")


def _list(resolver: Resolver) -> None:
    row = "{:<24}{:<7}{:>8}  {:<10}{:<28}{}"
    print(row.format("name", "role", "size", "state", "licence", "what"))
    for asset in resolver.manifest.assets:
        size = f"{asset.size_bytes / 1e6:.0f} MB"
        state = "cached" if resolver.is_cached(asset) else "to fetch"
        summary = asset.summary + (" (default)" if asset.default else "")
        print(row.format(asset.name, asset.role, size, state, asset.licence, summary))
    for model in resolver.manifest.hub_models:
        print(row.format(model.name, "llm", "", "hub only", model.licence, model.repo))


if __name__ == "__main__":
    leaving.leave(main())
