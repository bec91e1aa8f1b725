#!/usr/bin/env python3
"""Runs vLLM's real NixlConnector as a prefill (P) or decode (D) peer on a CPU, and tells what it does as JSON lines.

    vllm_peer.py --home DIR prefill --engine-id p --listen 127.0.0.1:5600 --lease 6 --tp 2 --grant ID...
    vllm_peer.py --home DIR decode --engine-id d --lease 6 --tp 4 --hold 3 --params FILE
    vllm_peer.py --home DIR describe

DIR is what `fetch.py DIR` made; the script goes on under DIR's own Python by itself. Every event has `at`, seconds of
CLOCK_MONOTONIC (Python's perf_counter, the clock of vLLM's leases). Exit status: 0 all was well, 1 a read failed or did not
match, 3 vLLM raised or logged an error, 4 timed out.
"""

import argparse
import logging
import os
import socket
import sys
import threading

VERSION = "0.33.0"


def main() -> int:
    args = arguments()
    reexec(args.home, __file__)
    # Only now: they need DIR's packages.
    import stubs
    from decode import decode
    from prefill import prefill
    from tell import LogTeller, Teller

    tell = Teller()
    log = LogTeller(tell)
    logging.getLogger("vllm").addHandler(log)
    logging.getLogger("vllm").propagate = False
    threading.excepthook = tell.thread_died
    host, _, port = args.listen.rpartition(":")
    vllm = stubs.load(os.path.join(args.home, f"vllm-{VERSION}"), VERSION, host, int(port) or free_port())
    try:
        status = {"prefill": prefill, "decode": decode, "describe": describe}[args.role](args, vllm, tell, log)
    except Exception as error:
        tell.complain(repr(error), error)
    if tell.raised:
        status = 3
    tell("exit", status=status)
    # Past the exit handlers of NIXL and UCX, which are not what is tested here.
    os._exit(status)


def describe(args, vllm, tell, log) -> int:
    """The settings that a foreign peer must know, compatibility hash first."""
    import engine

    geometry = engine.default_geometry(args.regions, args.block_len)
    e = engine.Engine(vllm, "describe", 1, 6, geometry, "kv_producer", True, args.threads, tell)
    tell("description", **e.description())
    e.shutdown()
    return 0


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def reexec(home: str, script: str):
    """Goes on with the script under the Python of `home`, where NIXL is."""
    venv = os.path.realpath(os.path.join(home, "venv"))
    if os.path.realpath(sys.prefix) == venv:
        return
    python = os.path.join(venv, "bin", "python")
    if not os.path.exists(python):
        sys.exit(f"{python} is missing: run `fetch.py {home}` first")
    os.execv(python, [python, os.path.abspath(script), *sys.argv[1:]])


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--home", required=True, help="the folder that fetch.py made")
    parser.add_argument("--threads", type=int, default=4, help="NIXL's num_threads; vLLM's default is 4")
    parser.set_defaults(listen="127.0.0.1:0")
    roles = parser.add_subparsers(required=True, metavar="ROLE", dest="role")
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--engine-id", required=True)
    common.add_argument("--lease", type=int, default=6, help="kv_lease_duration, seconds")
    common.add_argument("--tp", type=int, default=1, help="ranks: 1, 2, 4 or 8")
    common.add_argument("--step", type=float, default=0.05, help="seconds from one engine step to the next")
    common.add_argument("--timeout", type=float, default=60.0, help="seconds")
    common.add_argument("--linger", type=float, default=0.5, help="seconds of further steps when all is done")
    shape = argparse.ArgumentParser(add_help=False)
    shape.add_argument("--block-len", type=int, default=65536, help="bytes of a block in one region, over all ranks")
    p = roles.add_parser("prefill", parents=[common, shape], help="grant blocks and serve them")
    p.add_argument("--listen", required=True, metavar="HOST:PORT", help="side channel")
    p.add_argument("--regions", type=int, default=4)
    p.add_argument("--grant", nargs="+", required=True, metavar="ID", help="request ids")
    p.add_argument("--blocks", type=int, default=3, help="blocks of each request")
    p.add_argument("--consumers-tp", type=int, help="D's ranks: tells how many completions each of P's ranks waits for")
    d = roles.add_parser("decode", parents=[common, shape], help="beat, read and verify")
    d.add_argument("--params", required=True, help="file of P's JSON lines, - for stdin")
    d.add_argument("--regions", type=int, default=0, help="0: as P's handshake says, and so is the block length")
    d.add_argument("--hold", type=float, default=0.0, help="seconds that the requests wait in the queue")
    d.add_argument("--abort", action="store_true", help="abort them after the wait instead of reading")
    d.add_argument("--no-enforce", dest="enforce", action="store_false", help="enforce_handshake_compat: false")
    q = roles.add_parser("describe", parents=[shape], help="tell the settings that a foreign peer must know")
    q.add_argument("--regions", type=int, default=4)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
