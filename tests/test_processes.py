"""Several real processes over loopback: equal to one, and none left waiting when one of them ends."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from _children import environment

pytestmark = pytest.mark.structure
DEMO = str(Path(__file__).parent.parent / "demos" / "many_devices.py")
SMALL = ["--tokens", "64"]
LIMIT = 240
"""Seconds for a whole run on a busy machine; the limits that are tested are shorter and counted apart."""


def start(*arguments):
    command = [sys.executable, DEMO, *SMALL, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment())


def ended(child, seconds=LIMIT):
    try:
        out, error = child.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        child.kill()
        child.communicate()
        raise
    return child.returncode, out, error


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "Z" not in Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]


def children_of(error):
    return [int(line.rsplit(" ", 1)[1]) for line in error.splitlines() if line.startswith("many: rank")]


@pytest.fixture(scope="module")
def one():
    """What one process of eight devices finds."""
    code, out, error = ended(start("--devices", 8, "--json"))
    assert code == 0, error
    found = json.loads(out)
    assert found["off"] < 1e-5
    return found


# Four have neighbours on both sides; two compare every scheme.
@pytest.mark.parametrize("processes", [pytest.param(2, marks=pytest.mark.exhaustive), 4])
def test_several_processes_equal_one(one, processes):
    compared = ("--only-ring",) if processes == 4 else ()
    code, out, error = ended(start("--processes", processes, "--devices", 8 // processes, "--json", *compared))
    assert code == 0, error
    found = json.loads(out)
    assert processes == 4 or found["off"] < 1e-5
    assert (found["processes"], found["devices"]) == (processes, 8)
    np.testing.assert_allclose(found["numbers"], one["numbers"], rtol=2e-6)
    assert not any(map(alive, children_of(error)))


def test_an_error_in_one_process_ends_the_others():
    code, _, error = ended(start("--processes", 2, "--only-ring", "--fail", "error"))
    assert code == 1
    assert "RuntimeError: a planted error" in error
    assert "many: the process of rank 1 ended with status 1; the others are ended" in error
    assert not any(map(alive, children_of(error)))


def test_a_process_that_never_arrives_ends_the_start():
    begun = time.monotonic()
    code, _, error = ended(start("--processes", 2, "--fail", "absent", "--start", 5))
    assert code == 1
    assert "DEADLINE_EXCEEDED" in error or "imed out" in error
    assert "many: the process of rank 0" in error
    assert time.monotonic() - begun < 90
    assert not any(map(alive, children_of(error)))


def test_a_killed_process_ends_the_others():
    """Started one by one, as on several hosts: nobody is there to end them but themselves."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{s.getsockname()[1]}"
    given = ("--processes", 2, "--only-ring", "--coordinator", address, "--fail", "kill")
    other, last = (start(*given, "--rank", rank) for rank in range(2))
    try:
        for line in last.stderr:
            if "goes on" in line:
                break
        last.send_signal(signal.SIGKILL)
        killed = time.monotonic()
        code, _, error = ended(other, 60)
        assert time.monotonic() - killed < 40
        assert code not in (0, None)
        assert "rank 0: JaxRuntimeError; ends" in error or "heartbeat" in error, error[-2000:]
    finally:
        for child in (other, last):
            child.kill()
            child.communicate()


def test_what_one_of_several_processes_refuses_is_the_callers_slip():
    code, _, error = ended(start("--processes", 2, "--tokens", 65))
    assert code == 2
    assert "65 tokens cannot be split in 8 equal pieces. Add 7." in error
    assert "ended with status 2; the others are ended" in error
    assert not any(map(alive, children_of(error)))


@pytest.mark.parametrize("tokens", ["65"])
def test_tokens_that_cannot_be_split_are_one_line(tokens):
    code, _, error = ended(start("--tokens", tokens))
    assert (code, error.count("\n")) == (2, 1)
    assert "65 tokens cannot be split in 16 equal pieces. Add 15." in error
