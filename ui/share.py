"""The public link: Gradio's tunnel, with the voice socket and the API on it."""

from __future__ import annotations

import contextlib
import subprocess
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ui.access import Access

TUNNEL_S = 75.0  # its parts each have a limit of 30 s
WARNING = """
  +--------------------------------------------------------------------------+
  |  This link has no password: whoever has it can talk to the model, and    |
  |  wait in the same queue. To ask for one: --auth user:password            |
  +--------------------------------------------------------------------------+"""


def open_link(access: Access, host: str, port: int, timeout_s: float = TUNNEL_S) -> str:
    """Open the tunnel and put its address into `access.link`; returns what to tell the owner.

    Does not raise: without a tunnel the page goes on for this machine, and the text says why.
    """
    outcome: list[str | Exception] = []
    thread = threading.Thread(target=_open, args=(host, port, outcome), daemon=True)
    thread.start()
    thread.join(timeout_s)
    result = outcome[0] if outcome else TimeoutError(f"no answer within {timeout_s:.0f} s")
    if isinstance(result, Exception):
        close_link()
        return f"No public link: {_reason(result)}. The page goes on at the address above."
    access.link = result
    told = f"The public link, for a week at most: {result}"
    return told if access.auth else told + WARNING


def close_link() -> None:
    """End every tunnel of this process. Idempotent."""
    from gradio.tunneling import CURRENT_TUNNELS

    while CURRENT_TUNNELS:
        tunnel = CURRENT_TUNNELS.pop()
        process, tunnel.proc = tunnel.proc, None
        if process is not None:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(2.0)


def _open(host: str, port: int, outcome: list[str | Exception]) -> None:
    from secrets import token_urlsafe

    from gradio.networking import GRADIO_SHARE_SERVER_ADDRESS, setup_tunnel

    try:
        local = "127.0.0.1" if host in ("0.0.0.0", "::", "") else host
        url = setup_tunnel(local, port, token_urlsafe(32), None, None)
    except Exception as error:  # network, disk and the tunnel's own: all end in the same words
        outcome.append(error)
    else:
        # The public server speaks https; one of your own is reached as it says.
        ours = GRADIO_SHARE_SERVER_ADDRESS is None
        outcome.append("https:" + url.partition(":")[2] if ours else url)


def _reason(error: Exception) -> str:
    import httpx
    from gradio.exceptions import ChecksumMismatchError

    if isinstance(error, ChecksumMismatchError):
        return "the tunnel program that was fetched is not the one that Gradio published"
    if isinstance(error, RuntimeError):
        return "Gradio's share server cannot be reached (is this machine online?)"
    if isinstance(error, httpx.HTTPError):
        return "the tunnel program cannot be fetched (is this machine online?)"
    if isinstance(error, ValueError):
        return "the share server refused the tunnel"
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__
