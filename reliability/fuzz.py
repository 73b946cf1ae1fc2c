"""Fuzzing every parser of bytes from outside: `python -m reliability.fuzz --minutes 60 --corpus FOLDER`.

Inputs that reach lines of progfed which none before them reached are kept in the corpus, on disk, and are what later
inputs are made of: a second run goes on where the first one stopped. Whatever is not a documented error, takes longer
than `SLOW` seconds or more memory than `ROOM`, is written to `FOLDER/found` and ends with exit code 1.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import signal
import struct
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any

import progfed
from progfed import rng
from reliability import expect, workspace
from reliability.hostile import peak
from reliability.parsers import Parser, parsers

SLOW, ROOM = 20, 256 * 2**20
"""Seconds of the processor that one input may take, and bytes by which all inputs of a parser may raise the memory."""
LONGEST = 2**17
SOURCE = str(Path(progfed.__file__).parent)
NUMBERS = (0, 1, 2, 127, 128, 255, 256, 32767, 65535, 65536, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**63 - 1, 2**63)


class Corpus:
    """Inputs that reached something new, and the lines that any of them has reached."""

    def __init__(self, folder: Path, parser: Parser) -> None:
        self._folder, self._parser = folder, parser
        folder.mkdir(parents=True, exist_ok=True)
        kept = [path.read_bytes() for path in sorted(folder.glob("*.input"))]
        self.inputs = list(dict.fromkeys([*parser.seeds(), *kept]))
        self.lines: set[tuple[str, int]] = set()

    def add(self, data: bytes, lines: set[tuple[str, int]]) -> None:
        """Keep an input if it has reached a new line."""
        if not lines <= self.lines:
            self.lines |= lines
            self.inputs.append(data)
            (self._folder / f"{hashlib.sha256(data).hexdigest()[:16]}.input").write_bytes(data)


def mutated(parser: Parser, corpus: Corpus, draw: Random) -> bytes:
    """Another input: one of the corpus with one to eight changes, often a small one."""
    data = bytearray(draw.choice(corpus.inputs))
    for _ in range(draw.choice((1, 1, 1, 2, 2, 3, 5, 8))):
        at = draw.randrange(len(data) + 1) if draw.random() < 0.7 else draw.randrange(min(len(data), 200) + 1)
        match draw.randrange(9):
            case 0:
                data[at : at + 1] = bytes([draw.randrange(256)])
            case 1 if data:
                data[min(at, len(data) - 1)] ^= 1 << draw.randrange(8)
            case 2:
                kind = draw.choice(("<B", "<H", ">H", "<I", ">I", "<Q", ">Q", "<d"))
                number = draw.choice(NUMBERS)
                size = struct.calcsize(kind)
                value: float = float(number) if kind == "<d" else number % 2 ** (8 * size)
                data[at : at + size] = struct.pack(kind, value)
            case 3:
                del data[at : at + draw.randint(1, 40)]
            case 4:
                data[at:at] = draw.randbytes(draw.randint(1, 12))
            case 5:
                data[at:at] = data[at : at + draw.randint(1, 200)]
            case 6:
                other = draw.choice(corpus.inputs)
                start = draw.randrange(len(other) + 1)
                data[at:] = other[start:]
            case 7 if parser.words:
                data[at:at] = draw.choice(parser.words)
            case _ if draw.random() < 0.2:
                del data[at:]
    return bytes(data[:LONGEST])


def attempts(parser: Parser, folder: Path, *, seconds: float, most: int, seed: int) -> int:
    """Feed a parser until the time or the number is over; how many inputs it has had. Raises where it broke."""
    corpus, draw = Corpus(folder / parser.name.replace(" ", "-"), parser), Random(rng.number(seed, "fuzz", parser.name))
    end, done, before = time.monotonic() + seconds, 0, 0
    first = list(corpus.inputs)
    while done < most and (time.monotonic() < end or done < len(first)):
        data = first[done] if done < len(first) else mutated(parser, corpus, draw)
        if draw.random() < 0.9:
            given = parser.prepare(data)
        else:
            given = data
        (folder / "last").write_bytes(given)  # for whoever has to look when the process is gone
        corpus.add(data, _reached(parser, given))
        before = before or peak()  # after the first input, which may import something
        if peak() - before > ROOM:
            raise AssertionError(f"the memory has grown by {(peak() - before) / 2**20:.0f} MB")
        done += 1
    return done


def _reached(parser: Parser, data: bytes) -> set[tuple[str, int]]:
    """The lines of progfed that reading some bytes reaches."""
    lines: set[tuple[str, int]] = set()

    def line(frame: FrameType, event: str, argument: Any) -> Any:
        lines.add((frame.f_code.co_filename, frame.f_lineno))
        return line

    def call(frame: FrameType, event: str, argument: Any) -> Any:
        return line if frame.f_code.co_filename.startswith(SOURCE) else None

    signal.setitimer(signal.ITIMER_PROF, SLOW)
    signal.alarm(10 * SLOW)  # for what waits without doing anything
    sys.settrace(call)
    try:
        parser.read(data)
    except parser.allowed as error:
        expect(str(error).isprintable(), "an error that is not printable")
    finally:
        sys.settrace(None)
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.alarm(0)
    return lines


def fuzz(parser: Parser, folder: Path, *, seconds: float, most: int, seed: int) -> tuple[int, str]:
    """Feed a parser in a process of its own; how many inputs it had, and what went wrong."""
    folder.mkdir(parents=True, exist_ok=True)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            for number in (signal.SIGALRM, signal.SIGPROF):
                signal.signal(number, _too_slow)
            os.write(writing, b"%d" % attempts(parser, folder, seconds=seconds, most=most, seed=seed))
            code = 0
        except BaseException:
            os.write(writing, traceback.format_exc().encode()[-4000:])
        finally:
            os._exit(code)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        said = pipe.read().decode(errors="replace")
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status == 0:
        return int(said), ""
    found = folder / "found" / f"{parser.name.replace(' ', '-')}-{int(time.time())}"
    found.parent.mkdir(exist_ok=True)
    found.write_bytes((folder / "last").read_bytes())
    return 0, f"{found}: {said or f'ended by signal {-status}'}"


def _too_slow(number: int, frame: FrameType | None) -> None:
    raise AssertionError(f"an input that takes more than {SLOW} s")


def outcomes(
    folder: Path, *, seconds: float, most: int, seed: int, only: Sequence[str] = ()
) -> Iterator[tuple[str, int, str]]:
    """Each parser's name, how many inputs it had, and what went wrong."""
    with workspace() as place:
        for parser in parsers(place):
            if not only or any(part in parser.name for part in only):
                yield parser.name, *fuzz(parser, folder, seconds=seconds, most=most, seed=seed)


def main() -> None:
    """Feed every parser for its share of the time."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--minutes", type=float, default=60, help="in all; half of it for the codecs' messages")
    options.add_argument("--corpus", type=Path, required=True, help="the folder that keeps what was found so far")
    options.add_argument("--only", action="append", default=[], help="only parsers whose name contains this")
    options.add_argument("--seed", type=int, default=int(time.time()))
    chosen = options.parse_args()
    with workspace() as place:
        number = sum(not chosen.only or any(o in p.name for o in chosen.only) for p in parsers(place))
    failed, total = False, 0
    share = 60 * chosen.minutes / max(1, number)
    for name, done, wrong in outcomes(chosen.corpus, seconds=share, most=10**12, seed=chosen.seed, only=chosen.only):
        print(f"{name:<24} {done:>9,} inputs, seed {chosen.seed}: {wrong or 'ok'}", flush=True)
        failed, total = failed or bool(wrong), total + done
    print(f"{total:,} inputs")
    sys.exit(int(failed))


if __name__ == "__main__":
    main()
