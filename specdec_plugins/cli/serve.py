"""Translate over HTTP, for clients of LibreTranslate and of DeepL.

    specdec-serve PAIR [PAIR ...]
    curl -d q="Hello." -d source=en -d target=de http://127.0.0.1:5000/translate

http://127.0.0.1:5000/ is a page, and /translate/stream shows an output while it grows. Each PAIR
is a pair's folder or a verifier's checkpoint; several serve several directions. It listens to this
machine alone, unless --host says otherwise. After SIGTERM or Ctrl-C it takes no new requests,
answers those that there are, and ends. Needs pip install 'specdec-plugins[serve]'.
"""

from __future__ import annotations

import argparse
import logging
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from specdec_plugins.files.command import Parser, command, positive
from specdec_plugins.files.errors import InferenceError
from specdec_plugins.inference.flags import add_verifier_flags
from specdec_plugins.jobs import progress
from specdec_plugins.jobs.loading import LOADING
from specdec_plugins.machine import cores

logger = logging.getLogger("specdec_plugins")


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = Parser(__doc__)
    add = parser.add_argument
    add_verifier_flags(parser, "a pair's folder, or a verifier", "PAIR", "+")
    add("--host", default="127.0.0.1", help="the address to listen on (127.0.0.1)")
    add("--port", type=positive, default=5000, help="the port to listen on (5000)")
    add("--api-key-file", metavar="FILE", type=Path, help="a key a line; requests need one")
    add("--workers", type=positive, help="processes, each with all models (a core each)")
    add("--threads", type=positive, default=1, help="threads of each worker (1)")
    add("--precision", choices=("float32", "int8"), default="float32", help="of the models")
    add("--beam", type=positive, default=1, help="hypotheses of beam search, for alternatives (1)")
    add("--max-characters", type=positive, default=20_000, help="of a request (20000)")
    add("--max-requests", type=positive, default=64, help="answered at the same time (64)")
    add("--timeout", type=positive, default=60, help="seconds for a request (60)")
    return parser.parse_args(argv)


def bound(host: str, port: int) -> socket.socket:
    """Return a socket at an address, to which nothing listens yet."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        raise InferenceError(f"--host {host} --port {port}: {error.strerror}") from error
    return listener


@command()
def main(argv: Sequence[str]) -> None:
    """Serve until a signal ends it."""
    args = parse(argv)
    if args.port > 65535:
        raise ValueError(f"--port {args.port}: must be at most 65535")
    try:
        import uvicorn

        from specdec_plugins.serve.app import Limits, make_service
    except ImportError as error:
        raise InferenceError(
            f"{error.name} is not installed; pip install 'specdec-plugins[serve]'"
        ) from error
    logger.setLevel(logging.INFO)
    service = make_service(
        args.verifier,
        workers=args.workers or max(1, cores() // args.threads),
        threads=args.threads,
        precision=args.precision,
        beam=args.beam,
        limits=Limits(args.max_characters, args.timeout, args.max_requests),
        api_key_file=args.api_key_file,
        dictionaries=args.dictionaries,
        source_lang=args.source_lang,
        target_lang=args.target_lang,
        as_transformer=args.as_transformer,
    )
    listener = bound(args.host, args.port)
    logger.info("http://%s:%d will answer when the models are loaded", args.host, args.port)
    with progress(False, LOADING):
        app = service.app()
    # Its own lines of access would name paths alone, but also who asks.
    config = uvicorn.Config(app, access_log=False, log_level="warning")
    with suppress(KeyboardInterrupt):  # the signal again that has ended it
        uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    sys.exit(main())
