"""The Gradio page: conversation, composer, engine selector, instruments; and its server.

Gradio is imported only when the page is built: it takes seconds, in which the models load.
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from engine.errors import UnpausedError
from ui import panels
from ui.services import Runtime, Services
from ui.socket import PATH, VoiceSocket
from ui.visitors import Visitors

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
        """Stop every turn and the server."""
        self.visitors.close_all()
        self.blocks.close(verbose=False)


def launch(services: Services, host: str = "127.0.0.1", port: int = 7860) -> None:
    """Serve the page until interrupted. Raises `UnpausedError` when the port cannot be had."""
    page = start(services, host, port)
    print(f"Unpaused is at {page.url} (Ctrl+C ends it)", flush=True)
    try:
        page.blocks.block_thread()
    finally:
        page.close()


def start(services: Services, host: str = "127.0.0.1", port: int = 7860) -> Page:
    """Serve the page from a thread. The models load while it comes up."""
    check_port(host, port)
    runtime = Runtime(services)
    runtime.warm()
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"  # read when gradio is imported
    from starlette.routing import WebSocketRoute

    from ui.theme import style, theme

    visitors = Visitors(runtime)
    blocks = build(visitors)
    blocks.queue(default_concurrency_limit=FOLLOWERS, api_open=False)
    _, url, _ = blocks.launch(
        server_name=host,
        server_port=port,
        app_kwargs={"routes": [WebSocketRoute(PATH, VoiceSocket(visitors).handle)]},
        theme=theme(),
        css=style(),
        head=panels.HEAD,
        max_threads=FOLLOWERS,
        max_file_size="1kb",  # nothing here takes files
        footer_links=[],
        run_history=False,
        ssr_mode=False,
        quiet=True,
        favicon_path=panels.STATIC / "favicon.svg",
        prevent_thread_lock=True,
    )
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


def build(visitors: Visitors) -> gr.Blocks:
    """The page's parts and what happens between them."""
    import gradio as gr

    from ui.handlers import Handlers

    services = visitors.runtime.services
    choices, missing = engine_choices(services)
    with gr.Blocks(title="Unpaused", fill_height=True, fill_width=True) as page:
        session_id = gr.State("")
        with gr.Column(elem_id="app"):
            with gr.Row(elem_id="header"):
                gr.HTML(panels.header(services.model_name), elem_id="name")
                with gr.Column(elem_id="engines"):
                    engine = gr.Radio(
                        choices,
                        value=services.default_engine,
                        label="Engine",
                        elem_id="engine",
                        interactive=True,
                    )
                    gr.HTML(panels.unavailable(missing), elem_id="missing-engines")
                new = gr.Button("New conversation", elem_id="new", size="sm")
            conversation = gr.Chatbot(
                elem_id="conversation",
                label="Conversation",
                show_label=False,
                layout="panel",
                placeholder=panels.WELCOME,
                buttons=[],
                feedback_options=None,
                latex_delimiters=[],
                height=None,
            )
            gr.HTML(
                html_template=panels.READINGS,
                js_on_load=panels.readings_script(),
                elem_id="instruments",
                apply_default_css=False,
            )
            with gr.Column(elem_id="composer"):
                voice = gr.HTML(
                    html_template=panels.VOICE,
                    js_on_load=panels.voice_script(),
                    elem_id="voice",
                    apply_default_css=False,
                )
                notice = gr.HTML("", elem_id="notice")
                with gr.Row(elem_id="write"):
                    prompt = gr.Textbox(
                        elem_id="prompt",
                        label="Message",
                        show_label=False,
                        placeholder="Or type a message",
                        lines=1,
                        max_lines=6,
                        autofocus=False,
                        container=False,
                    )
                    send = gr.Button("Send", elem_id="send", variant="primary", min_width=72)

        quiet: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}
        shown = [conversation, prompt, notice]
        handlers = Handlers(visitors)
        page.load(handlers.open, None, [session_id, voice, notice], **quiet)
        page.unload(handlers.unload)
        at_once: dict[str, Any] = {"trigger_mode": "multiple", **quiet}
        send.click(handlers.answer, [session_id, prompt], shown, **at_once)
        prompt.submit(handlers.answer, [session_id, prompt], shown, **at_once)
        voice.follow_turn(handlers.follow, session_id, shown, **at_once)
        voice.stop_turn(handlers.stop, session_id, None, **quiet)
        engine.input(handlers.choose_engine, [session_id, engine], [engine, notice], **quiet)
        new.click(handlers.begin_anew, session_id, [conversation, notice], **quiet)
    return page


def engine_choices(services: Services) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """The engines as (label, name) that run here, and as (label, why not) the others."""
    choices, missing = [], []
    for entry in services.engines:
        reason = entry.unavailable()
        if reason is None:
            choices.append((entry.label, entry.name))
        else:
            missing.append((entry.label, reason))
    return choices, missing
