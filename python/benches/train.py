"""The cost of an exchange for a trainer.

`python python/benches/train.py [--quick]` prints one JSON object.

Computing is a sleep, as on an accelerator: the processors are left to the gateways.
"""

import ctypes
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist

import landbridge
from landbridge._testing import LinkSpec, LocalRegions, find_program
from landbridge.torch import State, all_reduce_hook

QUICK = "--quick" in sys.argv
LINK = LinkSpec(rate="500 Mbit/s", rtt="80 ms", loss="0.1 %")
#: Bytes of a post on the wire, and of its answer.
POST_BYTES, ANSWER_BYTES = 78, 46
LAYERS = 16
#: Gradients of the model, in all.
GRADIENT_BYTES = (16 if QUICK else 64) << 20
BUCKET_MB = GRADIENT_BYTES / LAYERS / (1 << 20)
STEPS = 3 if QUICK else 7
#: Address of the first region where regions are network namespaces.
FIRST_ADDRESS = "10.77.0.1"


def main():
    report = {"quick": QUICK, "torch": torch.__version__}
    # One region: what the way between trainer and gateway costs, and nothing else.
    with LocalRegions(ranks=(1,)) as regions:
        config = regions.config("east")
        report["first_use"] = first_use(config)
        with landbridge.connect(config=config, rank=0, arena="600 MiB") as group:
            report["round_trip"] = round_trip(group)
            report["copy"] = copying(group)
    with LocalRegions(link=LINK) as regions, Both(regions, "256 MiB") as groups:
        report["overlap"] = overlap(groups, regions.folder)
    report["gloo"] = gloo(report["overlap"]["compute_seconds"])
    print(json.dumps(report))


class Both:
    """Both ranks of a regions, each in a thread."""

    def __init__(self, regions, arena):
        self._lab, self._arena = regions, arena

    def __enter__(self):
        def attach(rank):
            config = self._lab.config_of(rank)
            return landbridge.connect(config=config, rank=rank, arena=self._arena)

        self._groups = on_both(attach, (0, 1))
        return self._groups

    def __exit__(self, *_):
        for group in self._groups:
            group.close()


def on_both(function, items):
    """Calls at once; in the process's main thread for the first."""
    results = {}
    other = threading.Thread(target=lambda: results.update({1: function(items[1])}))
    other.start()
    first = function(items[0])
    other.join()
    return [first, results[1]]


def round_trip(group):
    """4 KiB through the gateway, and a bare ping-pong between two processes, by turns: the time
    that it takes to wake another process changes from one moment to the next."""
    count, rounds = 300, 3 if QUICK else 21
    array, out = group.empty(1024, torch.float32), group.empty(1024, torch.float32)
    ours, bare = [], []
    for _ in range(rounds):
        ours.append(
            statistics.median(timed(lambda: group.all_reduce(array, "sum", out=out), count))
        )
        bare.append(ping_pong(count))
    of = statistics.median
    return {
        "seconds": of(ours),
        "bare_seconds": of(bare),
        "least_bare_seconds": min(bare),
        "ratio": of(ours) / of(bare),
    }


def timed(function, count):
    times = []
    for _ in range(count):
        begun = time.perf_counter()
        function()
        times.append(time.perf_counter() - begun)
    return times


def ping_pong(count):
    ours, theirs = socket.socketpair()
    if os.fork() == 0:
        for _ in range(count):
            theirs.recv(POST_BYTES)
            theirs.sendall(b"x" * ANSWER_BYTES)
        os._exit(0)

    def once():
        ours.sendall(b"x" * POST_BYTES)
        ours.recv(ANSWER_BYTES)

    times = timed(once, count)
    os.wait()
    return statistics.median(times)


def copying(group):
    """An array into a slot and out of it, as `all_reduce` does it, and memcpy of as many bytes:
    by one thread each."""
    from landbridge._memory import arrays

    size = 64 << 20
    source, block = torch.ones(size // 4), group._reserve(size)
    target = torch.ones(size // 4)
    ways = {
        "in": lambda: arrays.adapt(source).store(block),
        "out": lambda: arrays.adapt(target).load(block),
        "memcpy": lambda: ctypes.memmove(target.data_ptr(), source.data_ptr(), size),
    }
    seconds = dict.fromkeys(ways, float("inf"))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    for _ in range(5 if QUICK else 20):
        for way, copy in ways.items():
            seconds[way] = min(seconds[way], *timed(copy, 1))
    torch.set_num_threads(threads)
    rates = {f"{way}_bytes_per_second": size / least for way, least in seconds.items()}
    return {**rates, "ratio": seconds["memcpy"] / max(seconds["in"], seconds["out"])}


def first_use(config):
    """Steps in arenas that were never used, and as many in the same parts again. Of each step the
    median over all arenas counts: what an arena costs at first it costs each time, and a moment in
    which the machine did something else comes only once."""
    runs = []
    for _ in range(3 if QUICK else 9):
        with landbridge.connect(config=config, rank=0, arena="600 MiB") as group:
            runs.append(first_steps(group))
    firsts, laters = zip(*runs)
    longest = max(map(statistics.median, zip(*firsts)))
    median = statistics.median(map(statistics.median, laters))
    return {
        "arenas": len(runs),
        "longest_median_seconds": longest,
        "longest_single_seconds": max(map(max, firsts)),
        "median_seconds": median,
        "ratio": longest / median,
        "first_seconds": firsts,
        "later_seconds": laters,
    }


def first_steps(group):
    """Seconds of steps of 16 MiB, each in a part of 256 MiB that was never used, and of those
    after them. A connection's first collective takes longer, whatever its size, and has been."""
    size, kept = 16 << 20, []
    array = torch.ones(size // 4)
    group.barrier()

    def step(out):
        begun = time.perf_counter()
        kept.append(group.all_reduce(array, "sum", out=out))
        return time.perf_counter() - begun

    first = [step(group.empty(size // 4, array.dtype)) for _ in range(16)]
    return first, [step(out) for out in kept[:16]]


class Slow(torch.autograd.Function):
    """Computes nothing for a while, in backward."""

    @staticmethod
    def forward(context, inputs, weight, seconds):
        context.seconds, context.shape = seconds, weight.shape
        return inputs + weight.reshape(-1)[0]

    @staticmethod
    def backward(context, gradient):
        time.sleep(context.seconds)
        return gradient, torch.ones(context.shape), None


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        elements = GRADIENT_BYTES // 4 // LAYERS
        layers = (torch.nn.Parameter(torch.zeros(elements)) for _ in range(LAYERS))
        self.layers = torch.nn.ParameterList(layers)
        self.seconds = 0.0

    def forward(self, inputs):
        for layer in self.layers:
            inputs = Slow.apply(inputs, layer, self.seconds)
        return inputs.sum()


def overlap(groups, folder):
    """Measures the part of an exchange that DDP hides, where it takes half as long as computing."""
    store = f"file://{folder}/store"
    dist.init_process_group("gloo", init_method=store, rank=0, world_size=1)
    pairs = []
    for group in groups:
        model = Model()
        ddp = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=BUCKET_MB)
        switch = Switch(State(group))
        ddp.register_comm_hook(switch, hook)
        pairs.append((model, ddp, switch))

    def timed(seconds, exchanges):
        def step(pair):
            model, ddp, switch = pair
            model.seconds, switch.exchanges = seconds / LAYERS, exchanges
            begun = time.perf_counter()
            ddp(torch.ones(1)).backward()
            return time.perf_counter() - begun

        # The first two lay out buckets.
        times = [max(on_both(step, pairs)) for _ in range(STEPS + 2)][2:]
        return statistics.median(times)

    alone = timed(0.0, True) - timed(0.0, False)
    compute = 2 * alone
    without, with_exchange = timed(compute, False), timed(compute, True)
    dist.destroy_process_group()
    exposed = with_exchange - without
    return {
        "gradient_bytes": GRADIENT_BYTES,
        "exchange_alone_seconds": alone,
        "compute_seconds": compute,
        "step_without_seconds": without,
        "step_with_seconds": with_exchange,
        "hidden": 1 - exposed / alone,
        "link": LINK._asdict(),
    }


def gloo(compute):
    """The same steps by DDP's own all-reduce over Gloo, through the same link between network
    namespaces; where the machine has none, why not."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "fabric.toml"
        file.write_text(sites(), "utf-8")
        up = lab_command("up", file)
        done = subprocess.run(up, capture_output=True, text=True, check=False)
        if done.returncode:
            print(f"!! SKIPPED: Gloo: {done.stderr.strip()}", file=sys.stderr)
            return {"skipped": done.stderr.strip()}
        try:
            return gloo_steps(file, compute)
        finally:
            subprocess.run(lab_command("down", file), capture_output=True, check=False)


def gloo_steps(file, compute):
    for site in ("east", "west"):
        # Room for more than is under way, which the system's default has not.
        for name in ("tcp_rmem", "tcp_wmem"):
            setting = f"net.ipv4.{name}=4096 1048576 268435456"
            words = ("--", "sysctl", "-q", "-w", setting)
            subprocess.run(lab_command("exec", file, site, *words), check=True)
    script = str(Path(__file__).with_name("gloo_ddp.py"))
    quick = ("--quick",) if QUICK else ()
    processes = []
    for rank, site in enumerate(("east", "west")):
        program = (sys.executable, script, str(rank), FIRST_ADDRESS, str(compute), str(STEPS))
        command = lab_command("exec", file, site, "--", *program, *quick)
        environment = {**os.environ, "GLOO_SOCKET_IFNAME": "wan0"}
        processes.append(subprocess.Popen(command, stdout=subprocess.PIPE, env=environment))
    try:
        times = [float(process.communicate(timeout=600)[0]) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    control = Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text("ascii").strip()
    return {"step_seconds": max(times), "congestion_control": control}


def lab_command(*words):
    return [find_program(), "wan-sim", "regions", *map(str, words)]


def sites():
    lines = ['name = "bench"', "mtu = 1500"]
    for index, name in enumerate(("east", "west"), 1):
        lines += [f"[region.{name}]", "ranks = 1", f"[region.{name}.gateway.{name}-0]"]
        lines += [f'wan = "10.77.0.{index}:7400"']
        lines += [f'egress = "{LINK.rate}"', f'ingress = "{LINK.rate}"']
    lines += ["[link.east-west]", f'rate = "{LINK.rate}"', f'rtt = "{LINK.rtt}"']
    return "\n".join([*lines, f'loss = "{LINK.loss}"', ""])


class Switch:
    def __init__(self, state):
        self.state, self.exchanges = state, True


def hook(switch, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    if switch.exchanges:
        return all_reduce_hook(switch.state, bucket)
    done = torch.futures.Future()
    done.set_result(bucket.buffer())
    return done


if __name__ == "__main__":
    main()
