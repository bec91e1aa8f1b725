#!/usr/bin/env python3
"""Interop scenarios between vLLM's real NixlConnector and kvlease: one line each, exit status 0 if all passed.

    run.py --home DIR --self                    vLLM against vLLM: checks the harness
    run.py --home DIR --kvlease target/release/kvlease
    run.py --home DIR --kvlease ... --prefill-only | --decode-only        only our P | only our D

DIR is what `fetch.py DIR` made. Times are judged by the stamps of the peer that holds the blocks.
"""

import argparse
import contextlib
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import block_maps
from children import Child, ChildError, Children
from judge import Failed, expect
from vllm_peer import free_port, reexec

LEASE = 30  # seconds, vLLM's default; enough for any machine to start its agents
SHORT = 6  # where beats and expiry are judged
INTERVAL, EXTENSION = SHORT // 6, SHORT * 2 // 3
OFFSET_BOUND = 0.5  # seconds; one clock, so only the round trip of a busy machine
JUNK = {"malformed", "unknown_rank", "wrong_frames", "oversized", "not_zeromq"}  # the kinds that `throw_junk` throws
IDS = ["cmpl-1-0-aabbccdd", "chatcmpl-5f0c-22334455"]
PEER = str(Path(__file__).with_name("vllm_peer.py"))


@dataclass
class Side:
    """One pairing: who is P and who is D, and how each is started."""

    home: str
    kvlease: str | None
    compat_hash: str
    ours: str  # "prefill", "decode" or "": both are vLLM
    geometry: tuple[int, int] = (4, 65536)  # regions, bytes of a whole block
    vllm: list[Child] = field(default_factory=list)  # all of vLLM's processes so far
    decodes: list[Child] = field(default_factory=list)  # all D so far, ours and vLLM's

    @property
    def name(self):
        return {"": "vLLM P, vLLM D", "prefill": "our P, vLLM D", "decode": "vLLM P, our D"}[self.ours]

    @property
    def handshake(self):
        """D's event of a handshake that was made."""
        return "handshake" if self.ours == "decode" else "handshake_done"

    def env(self) -> dict[str, str]:
        """Our binary uses the NIXL of DIR, unless the caller names another."""
        env = {} if os.path.isdir("/sys/class/infiniband") else {"UCX_MODULES": os.environ.get("UCX_MODULES", "^ib")}
        libs = sorted(Path(self.home).glob("venv/lib/python3*/site-packages/.nixl_cu12.mesonpy.libs"))
        if libs and "KVLEASE_NIXL" not in os.environ:
            env |= {"KVLEASE_NIXL": str(libs[0]), "NIXL_PLUGIN_DIR": str(libs[0] / "plugins")}
        return env

    def prefill(self, children: Children, tp: int, d_tp: int, ids: list[str] = IDS, lease: int = LEASE) -> Child:
        listen, grants = f"127.0.0.1:{free_port()}", ["--grant", *ids]
        shared = ["--listen", listen, "--engine-id", "engine-p", "--lease", str(lease), "--tp", str(tp)]
        if self.ours == "prefill":
            command = [self.kvlease, "prefill", "--transport", "nixl", "--wire", "vllm", "--block-map", *shared]
            p = children.start("p", [*command, "--compat-hash", self.compat_hash, *grants], self.env())
        else:
            command = [sys.executable, PEER, "--home", self.home, "prefill", *shared, "--consumers-tp", str(d_tp)]
            p = children.start("p", [*command, *grants])
            self.vllm.append(p)
        return p

    def pair(
        self, children: Children, d_tp: int, p_tp: int, hold: float, ids: list[str] = IDS, lease: int = LEASE, more=()
    ) -> tuple[Child, Child]:
        """Both, with D's requests enqueued as soon as P granted them."""
        decode = Decode(self, children, d_tp, hold, lease, more)
        p = self.prefill(children, p_tp, d_tp, ids, lease)
        return p, decode.enqueue(granted(p, len(ids)))


class Decode:
    """A D that is made ready before P's leases run: vLLM's takes seconds to start its agents."""

    def __init__(self, side: Side, children: Children, tp: int, hold: float, lease: int = LEASE, more=()):
        self.side, self.children = side, children
        shared = ["--tp", str(tp), "--hold", str(hold), *more]
        if side.ours == "decode":
            self.child = None
            self.command = [side.kvlease, "decode", "--transport", "nixl", "--wire", "vllm", "--block-map", *shared]
            self.command += ["--lease", str(lease), "--compat-hash", side.compat_hash]
            return
        regions, block_len = side.geometry
        command = [sys.executable, PEER, "--home", side.home, "decode", "--engine-id", "engine-d", "--lease", str(lease)]
        command += [*shared, "--regions", str(regions), "--block-len", str(block_len), "--params", "-"]
        self.child = children.start("d", command, stdin=subprocess.PIPE)
        side.vllm.append(self.child)
        side.decodes.append(self.child)
        self.child.until_event("ready")

    def enqueue(self, params: list[dict]) -> Child:
        text = "".join(json.dumps({"kv_transfer_params": p}) + "\n" for p in params)
        if self.child:
            self.child.give(text)
            return self.child
        file = self.children.logs / "d.params"
        file.write_text(text)
        d = self.children.start("d", [*self.command, "--params", str(file)], self.side.env())
        self.side.decodes.append(d)
        return d


def granted(p: Child, count: int) -> list[dict]:
    return p.until(f"{count} grants", lambda: p.params() if len(p.params()) >= count else None)


def seconds(event: dict, key: str) -> float:
    expect(key in event, f"{event.get('event')} has no {key}: {event}")
    return float(event[key])


# The scenarios. Each gets a pairing and its own children, and returns what is worth telling.


def read(d_tp: int, p_tp: int):
    def scenario(side: Side, children: Children) -> str:
        p, d = side.pair(children, d_tp, p_tp, hold=2)
        status = d.wait()
        landed = d.events("read_landed")
        for event in landed:
            expect(event.get("matches") is True, f"not what P holds: {event}, {d.events('mismatch')[:1]}")
            expect(int(event.get("bytes", 0)) > 0, f"read nothing: {event}")
        # vLLM's D tells it for all its ranks at once, ours for each.
        parts = Counter(e.get("request") for e in landed)
        times = d_tp if side.ours == "decode" else 1
        expect(parts == dict.fromkeys(IDS, times), f"read {parts}, each {times} x expected; D ended with {status}: {d.last()}")
        expect(status == 0, f"D ended with {status}: {d.last()}")
        expect(p.wait() == 0, f"P ended with {p.process.returncode}: {p.last()}")
        freed_once(side, p, p_tp, IDS, "completed")
        if side.ours != "prefill":
            check_completions(p, d_tp, p_tp)
        regions = side.geometry[0]
        blocks = block_maps.check(side.ours, regions, p, d, d_tp, p_tp) if side.ours else 0
        told = f", {blocks} blocks lie where vLLM says" if side.ours else ""
        return f"{sum(int(e.get('bytes', 0)) for e in landed)} bytes match, freed by completion{told}"

    scenario.__name__ = f"read, D tp {d_tp}, P tp {p_tp}"
    return scenario


def freed_once(side: Side, p: Child, tp: int, ids: list[str], reason: str) -> list[dict]:
    """Every rank of P freed every request exactly once, for that reason. vLLM's scheduler then heard of it exactly once."""
    freed = p.events("freed")
    for event in freed:
        expect(event.get("reason") == reason, f"freed for another reason than {reason}: {event}")
    got = Counter((e.get("rank"), e.get("request")) for e in freed)
    expected = {(rank, request): 1 for rank in range(tp) for request in ids}
    expect(got == expected, f"freed {dict(got)}, expected each once: {list(expected)}")
    if side.ours != "prefill":
        sent = Counter(e.get("request") for e in p.events("finished_sending"))
        expect(sent == dict.fromkeys(ids, 1), f"vLLM's P finished sending {dict(sent)}, expected each of {ids} once")
    return freed


def check_completions(p: Child, d_tp: int, p_tp: int):
    """Each of vLLM's P ranks got the completions that it counts on, with that count in them."""
    consumers = max(1, d_tp // p_tp)
    for rank in range(p_tp):
        texts = [e["text"] for e in p.events("notification", rank=rank, kind="completion")]
        for request in IDS:
            got = texts.count(f"{request}:{consumers}")
            expect(got == consumers, f"P rank {rank} got {got} x {request}:{consumers}, expected {consumers}: {texts}")


def handshake_and_beats_from_enqueue(side: Side, children: Children) -> str:
    """D waits longer than the lease before it reads: only beats that began while it was queued save the blocks."""
    hold = SHORT + 2
    p, d = side.pair(children, 1, 1, hold, lease=SHORT)
    expect(d.wait() == 0, f"D ended with {d.process.returncode}: {d.last()}")
    expect(p.wait() == 0, f"P ended with {p.process.returncode}: {p.last()}")
    names = d.names()
    expect("read_started" in names, f"D never began a read: {names}")
    waiting = names[: names.index("read_started")]
    for name in (side.handshake, "heartbeat_sent"):
        expect(name in waiting, f"no {name} while D waited: {waiting}")
    told = []
    for freed in freed_once(side, p, 1, IDS, "completed"):
        request = freed["request"]
        expect(p.events("renewed", request=request), f"{request} was never renewed")
        stamps = beats(side, p, request)
        # vLLM's first beat is due at once or one interval later; the last before the read ends.
        least = hold / INTERVAL - 2
        most = (seconds(freed, "now") - stamps[0]) / INTERVAL + 2 if stamps else least
        expect(least <= len(stamps) <= most, f"{request}: {len(stamps)} beats, expected {least:.0f} to {most:.0f}")
        gaps = sorted(b - a for a, b in itertools.pairwise(stamps))
        median = gaps[len(gaps) // 2]
        expect(0.8 <= median / INTERVAL <= 1.5, f"{request}: median gap {median:.2f} s, expected {INTERVAL}: {gaps}")
        told.append(f"{len(stamps)} beats, median gap {median:.2f} s")
    return f"both before the read, {told[0]}"


def beats(side: Side, p: Child, request: str) -> list[float]:
    """When P took each. vLLM's P tells a renewal only where it moved the deadline, which the first beats of a lease do not."""
    if side.ours == "prefill":
        return [seconds(e, "at") for e in p.events("renewed", request=request)]
    heard = p.events("notification", kind="heartbeat")
    return [seconds(e, "at") for e in heard if request in e["text"].removeprefix("HB:").split(",")]


def expiry_after_kill(side: Side, children: Children) -> str:
    """D is killed while its request waits. P keeps the blocks for one extension after the last beat, and not a poll longer."""
    p, d = side.pair(children, 1, 1, hold=60, ids=IDS[:1], lease=SHORT)
    p.until_event("renewed", count=2)
    d.kill()
    p.until_event("freed")
    expect(p.wait() == 0, f"P ended with {p.process.returncode}: {p.last()}")
    return judge_expiry(side, p, EXTENSION)


def silent_reader(side: Side, children: Children) -> str:
    """No D ever comes. P keeps the blocks for the lease."""
    p = side.prefill(children, 1, 1, IDS[:1], SHORT)
    granted(p, 1)
    p.until_event("freed")
    expect(p.wait() == 0, f"P ended with {p.process.returncode}: {p.last()}")
    return judge_expiry(side, p, None)


def judge_expiry(side: Side, p: Child, extension: int | None) -> str:
    (freed,) = freed_once(side, p, 1, IDS[:1], "expired")
    expires, now, previous = (seconds(freed, key) for key in ("expires", "now", "previous_poll"))
    expect(previous < expires <= now, f"not freed at the first poll at or after the deadline: {freed}")
    renewed = p.events("renewed")
    if extension is None:
        expect(not renewed, f"renewed by nobody: {renewed}")
        return f"freed {now - expires:.3f} s after the deadline"
    last = renewed[-1]
    expect(seconds(last, "expires") == expires, f"the deadline is not the last renewal's: {last}, {freed}")
    given = expires - seconds(last, "at")
    # `at` is told a little after the renewal was handled, never before.
    expect(extension - 1 < given < extension + 0.001, f"the last beat gave {given:.3f} s, expected {extension}")
    return f"freed {now - expires:.3f} s after the deadline, {given:.3f} s after the last beat was told"


def abort_frees(side: Side, children: Children) -> str:
    """D's requests are aborted before they are read: a completion without a read."""
    p, d = side.pair(children, 4, 2, hold=1, more=["--abort"])
    expect(d.wait() == 0, f"D ended with {d.process.returncode}: {d.last()}")
    expect(p.wait() == 0, f"P ended with {p.process.returncode}: {p.last()}")
    freed = freed_once(side, p, 2, IDS, "completed")
    expect(not d.events("read_posted"), "D read what it had aborted")
    return f"{len(d.events('completion_sent'))} completions sent, freed {len(freed)} times, once per request and rank"


def junk_at_our_side_channel(side: Side, children: Children) -> str:
    """Malformed requests at our server, then a real D."""
    decode = Decode(side, children, 1, hold=1)
    p = side.prefill(children, 1, 1)
    params = granted(p, len(IDS))
    sent = throw_junk(params[0]["remote_host"], int(params[0]["remote_port"]))
    d = decode.enqueue(params)
    expect(d.wait() == 0, f"D ended with {d.process.returncode} after junk: {d.last()}")
    expect(p.wait() == 0, f"P ended with {p.process.returncode}: {p.last()}")
    told = p.events("side_channel")
    expect(told, "our P told nothing of what it refused")
    refused = told[-1].get("refused", {})
    missing = sorted(kind for kind in JUNK if not refused.get(kind, 0) > 0)
    expect(not missing, f"our P refused none as {missing}, of all the junk: {refused}")
    freed_once(side, p, 1, IDS, "completed")
    landed = {e["request"] for e in d.events("read_landed", matches=True)}
    expect(landed == set(IDS), f"after junk only {landed} were read: {d.last()}")
    counts = ", ".join(f"{count} {kind}" for kind, count in sorted(refused.items()))
    return f"{sent} malformed requests, refused {counts}; then {len(landed)} reads"


def throw_junk(host: str, port: int) -> int:
    """What a stranger may send: not ZeroMQ at all, wrong frames, wrong msgpack, wrong ranks, far too much."""
    import zmq

    raw = [b"", b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 64, b"\xff\0\0\0\0\0\0\0\1\x7f" + b"\0" * 53, bytes(range(256)) * 64]
    good = b"\x93\xc4\x0cget_meta_msg\0\0"
    frames = [
        [b""], [b"", b""], [b"", b"\xc1"], [b"", b"\x93"], [b"", good[:-1]], [b"", good + b"\0"], [good], [b"", good, b""],
        [b"", b"\x93\xc4\x0cget_meta_msg\x00\xcd\xff\xff"], [b"", b"\x93\xc4\x0cget_meta_msg\xff\xff"],
        [b"", b"\x93\xc4\x0cxxx_meta_msg\0\0"], [b"", b"\x93\xac" + good[3:]], [b"", b"\xdd\xff\xff\xff\xff"],
        [b"", b"\x91" * 10_000], [b"", b"\xc6\xff\xff\xff\xff"], [b"x" * 300, b"y" * 1_000_000], [b""] * 500,
    ]  # fmt: skip
    for piece in raw:
        with socket.create_connection((host, port), timeout=5) as s, contextlib.suppress(OSError):
            s.sendall(piece)  # a server may hang up on it
    context = zmq.Context()
    try:
        for kind in (zmq.DEALER, zmq.REQ, zmq.PUB):
            for message in frames:
                with context.socket(kind) as s:
                    s.setsockopt(zmq.LINGER, 1000)
                    s.connect(f"tcp://{host}:{port}")
                    s.send_multipart(message)
    finally:
        context.term()
    return len(raw) + 3 * len(frames)


SCENARIOS = [
    read(1, 1),
    read(2, 4),
    read(4, 2),
    abort_frees,
    handshake_and_beats_from_enqueue,
    expiry_after_kill,
    silent_reader,
    junk_at_our_side_channel,
]


def applies(scenario, side: Side) -> bool:
    if scenario is junk_at_our_side_channel:
        return side.ours == "prefill"  # vLLM's own listener dies of it
    if scenario in (silent_reader, abort_frees):
        return side.ours != "decode"
    return True


# What must hold over all scenarios of a pairing.


def offsets(side: Side) -> str:
    """D's estimate of P's clock, which on one host is known. vLLM's perf_counter is CLOCK_MONOTONIC, as is what our P says."""
    known = 0.0
    if side.ours == "decode":  # our leases run on CLOCK_MONOTONIC_RAW and the time that the host was asleep
        clocks = (time.CLOCK_MONOTONIC, time.CLOCK_MONOTONIC_RAW, time.CLOCK_BOOTTIME)
        monotonic, raw, boot = map(time.clock_gettime, clocks)
        known = monotonic - (raw + boot - monotonic)
    found = [seconds(e, "offset") for d in side.decodes for e in d.events(side.handshake)]
    expect(found or not side.decodes, "D never estimated an offset")
    errors = [abs(offset - known) for offset in found]
    # A comparison with NaN is false.
    expect(all(error < OFFSET_BOUND for error in errors), f"offsets not within {OFFSET_BOUND} s of {known:.6f} s: {found}")
    return f"{len(found)} offsets" + (f", off by at most {max(errors) * 1000:.1f} ms" if found else "")


def never_raised(side: Side) -> str:
    for child in side.vllm:
        raised = child.events("raised")
        expect(not raised, f"{child.name} in {child.out.parent}: {raised and raised[0]['what']}")
    return f"{len(side.vllm)} vLLM processes"


def only_its_grammar(side: Side) -> str:
    """Nothing but vLLM's own texts reached vLLM; our native wire's first byte, 0xFF, is in none of them."""
    count = 0
    for child in side.vllm:
        for event in child.events("notification"):
            count += 1
            expect(event["kind"] in ("heartbeat", "completion"), f"{child.name} in {child.out.parent} got {event}")
    if side.ours == "prefill":
        # In pull mode a P says nothing to D.
        expect(count == 0, f"vLLM's D got {count} notifications of our P, expected none")
        return "0 notifications, as is right: P sends none to D"
    expect(count or not side.decodes, "vLLM's P got no notification at all")
    return f"{count} notifications"


def run_side(side: Side, logs: Path, only: str) -> tuple[int, int]:
    verdicts = []

    def judge(check, *args):
        name = check.__name__.replace("_", " ")
        try:
            told = check(side, *args)
            verdicts.append(True)
            print(f"pass  {side.name}: {name}: {told}", flush=True)
        except (Failed, ChildError, OSError) as error:
            verdicts.append(False)
            print(f"FAIL  {side.name}: {name}: {error}", flush=True)

    for number, scenario in enumerate(SCENARIOS):
        if only in scenario.__name__.replace("_", " ") and applies(scenario, side):
            with Children(logs / f"{side.ours or 'self'}-{number}") as children:
                judge(scenario, children)
    for check in (offsets, never_raised, only_its_grammar) if side.vllm else ():
        judge(check)
    return sum(verdicts), len(verdicts) - sum(verdicts)


def learn(side: Side, logs: Path):
    """The compatibility hash of vLLM here, and the geometry of our P, which D must share."""
    with Children(logs / "learn") as children:
        child = children.start("describe", [sys.executable, PEER, "--home", side.home, "describe"])
        side.compat_hash = child.until_event("description")[0]["compat_hash"]
        child.wait()
        if side.ours == "prefill":
            p = side.prefill(children, 1, 1, IDS[:1])
            side.geometry = ask_geometry(granted(p, 1)[0])


def ask_geometry(params: dict) -> tuple[int, int]:
    import msgspec
    import zmq

    with zmq.Context() as context, context.socket(zmq.REQ) as s:
        s.setsockopt(zmq.LINGER, 0)
        s.setsockopt(zmq.RCVTIMEO, 5000)
        s.connect(f"tcp://{params['remote_host']}:{params['remote_port']}")
        s.send(msgspec.msgpack.encode((b"get_meta_msg", 0, 0)))
        try:
            payload = msgspec.msgpack.decode(s.recv_multipart()[0])
        except zmq.Again:
            raise ChildError("our P did not answer a handshake within 5 s") from None
    meta = msgspec.msgpack.decode(payload["agent_metadata_bytes"])
    return len(meta["block_lens"]), meta["block_lens"][0] * params["tp_size"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--home", required=True, help="the folder that fetch.py made")
    parser.add_argument("--kvlease", help="our binary")
    parser.add_argument("--self", dest="itself", action="store_true", help="vLLM against vLLM")
    parser.add_argument("--prefill-only", action="store_true", help="only our P")
    parser.add_argument("--decode-only", action="store_true", help="only our D")
    parser.add_argument("--only", default="", metavar="WORDS", help="only the scenarios with these words in their names")
    parser.add_argument("--logs", help="folder for what every process said; kept")
    args = parser.parse_args()
    if not args.itself and not args.kvlease:
        parser.error("--kvlease PATH or --self is needed")
    reexec(args.home, __file__)
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # by SystemExit the children are ended
    logs = Path(args.logs or tempfile.mkdtemp(prefix="kvlease-interop-")).absolute()
    ours = [""] if args.itself else []
    if args.kvlease:
        ours += [role for role, other in (("prefill", args.decode_only), ("decode", args.prefill_only)) if not other]
    passed = failed = 0
    for role in ours:
        side = Side(os.path.abspath(args.home), args.kvlease and os.path.abspath(args.kvlease), "", role)
        try:
            learn(side, logs)
        except (ChildError, OSError) as error:
            print(f"FAIL  {side.name}: start: {error}", flush=True)
            failed += 1
            continue
        more = run_side(side, logs, args.only)
        passed, failed = passed + more[0], failed + more[1]
    print(f"{passed} passed, {failed} failed; what was said: {logs}")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
