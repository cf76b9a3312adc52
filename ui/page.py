"""The page's server; `ui/layout.py` has its parts.

Gradio is imported only when the page is built: it takes seconds, in which the models load.
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.errors import UnpausedError
from ui import panels, share
from ui.access import Access
from ui.server import MAX_QUEUED, app_arguments, tighten
from ui.services import Runtime, Services
from ui.visitors import MAX_SESSIONS, Visitors

if TYPE_CHECKING:
    import gradio as gr

FOLLOWERS = 64  # conversations followed at once, each on a thread


@dataclass(frozen=True)
class Page:
    """A running page. `url` is what a browser on this machine opens."""

    url: str
    visitors: Visitors
    blocks: gr.Blocks

    def close(self) -> None:
        """Stop every turn, the public link and the server."""
        self.visitors.close_all()
        share.close_link()
        self.blocks.close(verbose=False)


def launch(
    services: Services,
    host: str = "127.0.0.1",
    port: int = 7860,
    access: Access | None = None,
) -> None:
    """Serve the page until interrupted. Raises `UnpausedError` when the port cannot be had."""
    access = access or Access(host=host)
    page = start(services, host, port, access)
    print(f"Unpaused is at {page.url} (Ctrl+C ends it)", flush=True)
    try:
        if access.share:
            print(share.open_link(access, host, port), flush=True)
        page.blocks.block_thread()
    finally:
        page.close()


def start(
    services: Services,
    host: str = "127.0.0.1",
    port: int = 7860,
    access: Access | None = None,
) -> Page:
    """Serve the page from a thread. The models load while it comes up."""
    access = access or Access(host=host)
    check_port(host, port)
    runtime = Runtime(services)
    runtime.warm()
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"  # read when gradio is imported
    # Gradio remembers ten thousand events and sums them up after each; nobody asks for it here.
    os.environ.setdefault("GRADIO_ANALYTICS_MAX_EVENTS", "16")
    os.environ.setdefault("GRADIO_ANALYTICS_CACHE_FREQUENCY", "1000")

    from ui.layout import build
    from ui.theme import style, theme

    visitors = Visitors(runtime)
    visitors.watch()
    blocks = build(visitors, access)
    blocks.queue(default_concurrency_limit=FOLLOWERS, max_size=MAX_QUEUED, api_open=False)
    _, url, _ = blocks.launch(
        server_name=host,
        server_port=port,
        app_kwargs=app_arguments(visitors, access),
        theme=theme(),
        css=style(),
        head=panels.HEAD,
        max_threads=FOLLOWERS,
        state_session_capacity=2 * MAX_SESSIONS,  # pages that it remembers, 200 kB each
        max_file_size="1kb",  # nothing here takes files
        footer_links=[],
        run_history=False,
        ssr_mode=False,
        quiet=True,
        favicon_path=panels.STATIC / "favicon.svg",
        prevent_thread_lock=True,
        _frontend=False,  # asks itself for a page, and gives up after 3 s: models are loading now
        share=False,  # also against the environment: ui/share.py opens the link, once all is up
    )
    tighten(blocks.server)
    return Page(url, visitors, blocks)


def check_port(host: str, port: int) -> None:
    """Raises `UnpausedError` unless `port` on `host` is free. Gradio would say less clearly why."""
    if not 0 < port < 65536:
        raise UnpausedError(f"{port} is not a port; choose one from 1 to 65535 with --port")
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            if os.name == "posix":  # as the server will: a connection closed a moment ago is no bar
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        reason = error.strerror or error
        raise UnpausedError(
            f"cannot listen on {host}:{port} ({reason}); choose another with --port or --host"
        ) from None
