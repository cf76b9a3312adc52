"""Unpaused from the command line: the page, a chat line, a voice turn, a check of the machine.

Every fault of the input is one line on standard error and exit code 2.
"""

from __future__ import annotations

import argparse
import io
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks import options as bench_options
from benchmarks.results import nothing_measured
from engine import leaving, wait_as_others_do
from engine.leaving import Parser
from ui import listen


def _shared() -> tuple[Parser, Parser]:
    """Options of the page and the commands, and those of whoever speaks and listens."""
    # Suppressed defaults let `app.py --engine X chat` hold, and made anew for page and commands:
    # `set_defaults` writes into the options, which argparse shares with the parents.
    shared = Parser(add_help=False, argument_default=argparse.SUPPRESS)
    shared.add_argument("--engine", help="decode engine; `doctor` lists them (default: eager)")
    shared.add_argument("--model", help="a known name, a path, or a hub repository owner/name")
    shared.add_argument("--context", type=int, metavar="N", help="tokens kept (default: 2048)")
    shared.add_argument("--speculate", metavar="HOW", help="verify several drafted tokens a pass: "
        "ngram or draft:MODEL; off by default, as it pays only for text that repeats what is "
        "before it (quoting, editing); the reply is the same")  # fmt: skip
    speech = Parser(add_help=False, argument_default=argparse.SUPPRESS)
    speech.add_argument("--stt", metavar="MODEL", help="speech model: tiny.en, base, a folder, ...")
    speech.add_argument("--voice", metavar="VOICE", help="Piper voice: a name, or an .onnx file")
    speech.add_argument("--language", metavar="CODE", help="of the speaker (what the model tells)")
    return shared, speech


def parser() -> argparse.ArgumentParser:
    """The commands and their options."""
    sampling = Parser(add_help=False)
    sampling.add_argument("--max-tokens", type=int, default=256, help="(default: %(default)s)")
    sampling.add_argument("--temperature", type=float, default=0.0, help="(default: 0, greedy)")
    sampling.add_argument("--top-p", type=float, default=1.0, help="(default: 1, off)")
    # Without a penalty small greedy models fall into loops ("1.1.1.1.1...").
    sampling.add_argument("--repetition-penalty", type=float, default=1.1, help="(1.1; 1 is off)")
    sampling.add_argument("--seed", type=int, default=0, help="same seed, same reply (default: 0)")
    json = Parser(add_help=False)
    json.add_argument("--json", action="store_true", help="one JSON object as the last line")

    top = Parser(prog="app.py", description="Unpaused: a voice assistant that shows its decode.",
                  epilog="Without a command: the page.", parents=[*_shared()])  # fmt: skip
    top.add_argument("--host", default="127.0.0.1", help="address to listen on (%(default)s)")
    top.add_argument("--port", type=int, default=7860, help="port of the page (%(default)s)")
    top.add_argument("--share", action="store_true", help="a public link to the page, for a week")
    top.add_argument("--auth", metavar="USER:PASSWORD", help="asked of everyone (UNPAUSED_AUTH)")
    top.add_argument("--api-key", metavar="KEY", help="asked of /v1 clients (UNPAUSED_API_KEY)")
    top.set_defaults(engine="eager", model="smollm2-135m-instruct", context=2048, speculate="off",
                     stt="stt", voice="voice", language=None)  # fmt: skip
    shared, speech = _shared()
    commands = top.add_subparsers(
        dest="command", metavar="{chat,turn,listen,doctor,bench}", parser_class=Parser
    )

    chat = commands.add_parser("chat", help="answer one line", parents=[shared, sampling, json])
    chat.add_argument("text", help="what to say")
    turn = commands.add_parser(
        "turn",
        help="one whole voice turn from an audio file",
        parents=[shared, speech, sampling, json],
    )
    turn.add_argument("audio", type=Path, help="WAV, FLAC, OGG or MP3 with the question")
    turn.add_argument("--out", type=Path, help="write the spoken reply to this WAV")
    listen.add_arguments(
        commands.add_parser(
            "listen",
            help="talk to this machine itself",
            parents=[shared, speech, sampling, json],
        )
    )
    commands.add_parser("doctor", help="what this machine can do", parents=[json])
    bench_options.add_options(
        commands.add_parser("bench", help="measure every engine, after its correctness gate")
    )
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    options = parser().parse_args(arguments)
    return leaving.run(lambda: _run(options))


def _run(options: argparse.Namespace) -> int:
    if options.command == "doctor":
        from engine import doctor

        return doctor.run(options.json)
    if options.command == "bench":
        leaving.last_words(nothing_measured)
        wait_as_others_do()
        from benchmarks import bench

        return bench.run(options)
    if options.command == "listen":
        return listen.run(options)
    from ui import terminal

    if options.command == "chat":
        return terminal.chat(options)
    if options.command == "turn":
        return terminal.turn(options)
    return terminal.page(options)


if __name__ == "__main__":
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal without Unicode still gets the rest
    leaving.heed_interrupts()
    leaving.leave(main())
