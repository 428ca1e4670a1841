"""One process with simulated devices, or several that communicate through `jax.distributed`; none waits for ever.

Time limits, in seconds, each a choice: a process that never arrives ends the start after START; one that dies is missed
after HEARTBEAT, where a collective does not fail at once; one that hangs in a collective is given up after COLLECTIVE.
"""

import os
import socket
import subprocess
import sys
import time
import traceback

import _cli
import jax

START, HEARTBEAT, COLLECTIVE, GRACE = 30, 10, 60, 5


def arguments(parser):
    parser.add_argument("--devices", type=int, help="simulated devices of each process (default: 8, or 2 of several)")
    parser.add_argument("--processes", type=int, default=1, help="how many processes (default: 1)")
    parser.add_argument("--rank", type=int, help="which of them this is; without it all are started here")
    parser.add_argument("--coordinator", help="HOST:PORT of the process of rank 0")
    parser.add_argument("--cluster", action="store_true", help="let JAX find the others, under Slurm or in Kubernetes")
    parser.add_argument(
        "--start", type=int, default=START, help=f"seconds to wait for all to arrive (default: {START})"
    )
    parser.add_argument(
        "--fail", choices=["error", "kill", "absent"], help="how the last process fails, to see that all end"
    )
    return parser


def say(line):
    print(line, file=sys.stderr, flush=True)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def run(parser, compute, show):
    args = parser.parse_args()
    alone = args.processes == 1 and not args.cluster
    if not alone and args.rank is None and not args.cluster:
        raise SystemExit(launch(args.processes, args.start))
    flags = os.environ.get("XLA_FLAGS", "")
    os.environ["XLA_FLAGS"] = f"{flags} --xla_cpu_collective_timeout_seconds={COLLECTIVE}"
    if not args.cluster:
        jax.config.update("jax_num_cpu_devices", args.devices or (8 if alone else 2))
    if alone:
        return _cli.run(parser, compute, show)
    page = os.dup(1)
    os.dup2(2, 1)  # what the runtime prints about its connections is no part of the page
    join(args)
    last = args.rank == args.processes - 1
    if args.fail == "error" and last:
        compute = failing
    try:
        if args.fail == "kill":
            while True:
                compute(args)
                say(f"rank {args.rank} goes on")
        results = _cli.plain(compute(args))
    except BaseException as wrong:
        # Not through the shutdown barrier, where this process and the others would wait for each other.
        traceback.print_exc()
        print(
            f"rank {jax.process_index()}: {type(wrong).__name__}; ends, and the others with it",
            file=sys.stderr,
            flush=True,
        )
        os._exit(2 if isinstance(wrong, _cli.BadInput) else 1)
    os.dup2(page, 1)
    if jax.process_index() == 0:
        _cli.run(parser, lambda args: results, show)
    jax.distributed.shutdown()


def failing(args):
    raise RuntimeError("a planted error")


def join(args):
    if args.cluster:
        given = {}
    else:
        given = {"coordinator_address": args.coordinator, "num_processes": args.processes, "process_id": args.rank}
    jax.distributed.initialize(
        **given,
        initialization_timeout=args.start,
        heartbeat_timeout_seconds=HEARTBEAT,
        shutdown_timeout_seconds=2 * HEARTBEAT,
    )


def launch(n, start):
    """Starts n processes here and waits; the first that fails ends the others, and is named.

    The status is 0, or 2 where it refused what it was given, or 1.
    """
    address = f"127.0.0.1:{free_port()}"
    given = sys.argv[1:]
    absent = "absent" in given
    quiet = {"stdout": subprocess.DEVNULL}  # the first alone writes the page
    children = {}
    for rank in range(n - absent):
        command = [sys.executable, *sys.argv[:1], *given, "--rank", str(rank), "--coordinator", address]
        children[rank] = subprocess.Popen(command, **(quiet if rank else {}))
        say(f"many: rank {rank} is process {children[rank].pid}")
    try:
        while True:
            codes = {rank: child.poll() for rank, child in children.items()}
            failed = [rank for rank, code in codes.items() if code not in (None, 0)]
            if failed:
                # Name the one that refused its input, if any: the others failed because it ended.
                rank = min(failed, key=lambda rank: codes[rank] != 2)
                code = codes[rank]
                how = f"was killed by signal {-code}" if code < 0 else f"ended with status {code}"
                say(f"many: the process of rank {rank} {how}; the others are ended")
                return 2 if code == 2 else 1
            if all(code == 0 for code in codes.values()):
                return 0
            time.sleep(0.05)
    finally:
        for child in children.values():
            if child.poll() is None:
                child.terminate()
        deadline = time.monotonic() + GRACE
        for child in children.values():
            try:
                child.wait(max(0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
