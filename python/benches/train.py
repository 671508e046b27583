"""Measures the cost of an exchange for a trainer.

`python python/benches/train.py [--quick]` prints one JSON object. Computing is a sleep, as on an
accelerator, so the gateways have the processors.
"""

import ctypes
import json
import os
import socket
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist

import landbridge
from landbridge._local_regions import LocalRegions, RelayLink
from landbridge.torch import State, all_reduce_hook
from site_lab import ADDRESSES, DEVICE, SITES, SiteLab, SiteLabError

#: Whether the short version runs, with less data and fewer steps.
QUICK = "--quick" in sys.argv
#: The emulated link between the two regions.
LINK = RelayLink(rate="500 Mbit/s", rtt="80 ms", loss="0.1 %")
#: Bytes of a message of the ping-pong, about as long as a post.
PING_BYTES = 78
#: Bytes of an answer of the ping-pong, about as long as the message that a result is ready.
PONG_BYTES = 46
#: Layers of the model. The gradients of each are one bucket.
LAYERS = 16
#: Size of all gradients of the model.
GRADIENT_BYTES = (16 if QUICK else 64) << 20
#: Size of DDP's buckets of gradients, in MiB.
BUCKET_MB = GRADIENT_BYTES / LAYERS / (1 << 20)
#: Steps of which the median counts.
STEPS = 3 if QUICK else 7


def main():
    report = {"quick": QUICK, "torch": torch.__version__}
    # With one region only the way between trainer and gateway takes time.
    with LocalRegions(ranks=(1,)) as regions:
        config = regions.region_file("east")
        report["first_use"] = measure_first_use(config)
        with landbridge.connect(config=config, rank=0, arena="600 MiB") as group:
            report["round_trip"] = measure_round_trip(group)
            report["copy"] = measure_copies(group)
    with LocalRegions(link=LINK) as regions, BothRanks(regions, "256 MiB") as groups:
        report["overlap"] = measure_overlap(groups, regions.folder)
    report["gloo"] = measure_gloo(report["overlap"]["compute_seconds"])
    print(json.dumps(report))


class BothRanks:
    """A context with the groups of both ranks of two regions, each connected in a thread."""

    def __init__(self, regions, arena):
        self._regions, self._arena = regions, arena

    def __enter__(self):
        def attach(rank):
            config = self._regions.region_file_of_rank(rank)
            return landbridge.connect(config=config, rank=rank, arena=self._arena)

        self._groups = call_for_both(attach, (0, 1))
        return self._groups

    def __exit__(self, *_):
        for group in self._groups:
            group.close()


def call_for_both(function, items):
    """Calls a function for two items at once, for the first in this thread. Returns the results."""
    results = {}
    other = threading.Thread(target=lambda: results.update({1: function(items[1])}))
    other.start()
    first = function(items[0])
    other.join()
    return [first, results[1]]


def measure_round_trip(group):
    """Measures an all-reduce of 4 KiB, and a ping-pong between two processes without gateway.

    They alternate, because the time to wake another process changes from one moment to the next.
    """
    count, rounds = 300, 3 if QUICK else 21
    array, out = group.empty(1024, torch.float32), group.empty(1024, torch.float32)
    ours, bare = [], []
    for _ in range(rounds):
        ours.append(
            statistics.median(call_times(lambda: group.all_reduce(array, "sum", out=out), count))
        )
        bare.append(time_ping_pong(count))
    seconds, bare_seconds = statistics.median(ours), statistics.median(bare)
    return {
        "seconds": seconds,
        "bare_seconds": bare_seconds,
        "least_bare_seconds": min(bare),
        "ratio": seconds / bare_seconds,
    }


def call_times(function, count):
    """Calls a function ``count`` times. Returns the seconds of each call."""
    times = []
    for _ in range(count):
        begun = time.perf_counter()
        function()
        times.append(time.perf_counter() - begun)
    return times


def time_ping_pong(count):
    """Returns the median time of messages of a post's and an answer's size between processes."""
    ours, theirs = socket.socketpair()
    if os.fork() == 0:
        for _ in range(count):
            theirs.recv(PING_BYTES)
            theirs.sendall(b"x" * PONG_BYTES)
        os._exit(0)

    def once():
        ours.sendall(b"x" * PING_BYTES)
        ours.recv(PONG_BYTES)

    times = call_times(once, count)
    os.wait()
    return statistics.median(times)


def measure_copies(group):
    """Measures copies of an array into a slot and out of a slot, as `all_reduce` makes them.

    Compares them with `memcpy` of as many bytes. Each uses one thread.
    """
    from landbridge._memory import arrays

    size = 64 << 20
    source, slot = torch.ones(size // 4), group._reserve_slot(size)
    target = torch.ones(size // 4)
    ways = {
        "in": lambda: arrays.adapt_array(source).copy_to_slot(slot),
        "out": lambda: arrays.adapt_array(target).copy_from_slot(slot),
        "memcpy": lambda: ctypes.memmove(target.data_ptr(), source.data_ptr(), size),
    }
    seconds = dict.fromkeys(ways, float("inf"))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    for _ in range(5 if QUICK else 20):
        for way, copy in ways.items():
            seconds[way] = min(seconds[way], *call_times(copy, 1))
    torch.set_num_threads(threads)
    rates = {f"{way}_bytes_per_second": size / least for way, least in seconds.items()}
    return {**rates, "ratio": seconds["memcpy"] / max(seconds["in"], seconds["out"])}


def measure_first_use(config):
    """Measures steps in arenas that were never used, and as many in the same slots again.

    For each step the median over all arenas counts, because the cost of a first use comes in every
    arena, and an interruption by other processes in one.
    """
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
    """Returns the seconds of steps of 16 MiB in slots that were never used, and in them again.

    A barrier comes before them, because the first collective of a connection takes longer.
    """
    size, kept = 16 << 20, []
    array = torch.ones(size // 4)
    group.barrier()

    def step(out):
        begun = time.perf_counter()
        kept.append(group.all_reduce(array, "sum", out=out))
        return time.perf_counter() - begun

    first = [step(group.empty(size // 4, array.dtype)) for _ in range(16)]
    return first, [step(out) for out in kept[:16]]


class SleepInBackward(torch.autograd.Function):
    """A layer whose backward pass sleeps for some seconds."""

    @staticmethod
    def forward(context, inputs, weight, seconds):
        context.seconds, context.shape = seconds, weight.shape
        return inputs + weight.reshape(-1)[0]

    @staticmethod
    def backward(context, gradient):
        time.sleep(context.seconds)
        return gradient, torch.ones(context.shape), None


class Model(torch.nn.Module):
    """A model with ``LAYERS`` layers, of which each computes for ``seconds`` in backward."""

    def __init__(self):
        super().__init__()
        elements = GRADIENT_BYTES // 4 // LAYERS
        layers = (torch.nn.Parameter(torch.zeros(elements)) for _ in range(LAYERS))
        self.layers = torch.nn.ParameterList(layers)
        self.seconds = 0.0

    def forward(self, inputs):
        for layer in self.layers:
            inputs = SleepInBackward.apply(inputs, layer, self.seconds)
        return inputs.sum()


def measure_overlap(groups, folder):
    """Measures the part of an exchange that DDP hides, where it takes half as long as computing."""
    store = f"file://{folder}/store"
    dist.init_process_group("gloo", init_method=store, rank=0, world_size=1)
    pairs = []
    for group in groups:
        model = Model()
        ddp = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=BUCKET_MB)
        switch = HookSwitch(State(group))
        ddp.register_comm_hook(switch, switched_hook)
        pairs.append((model, ddp, switch))

    def median_step(seconds, exchanges):
        """Returns the median time of a step that computes for ``seconds``, with or without hook."""

        def step(pair):
            model, ddp, switch = pair
            model.seconds, switch.exchanges = seconds / LAYERS, exchanges
            begun = time.perf_counter()
            ddp(torch.ones(1)).backward()
            return time.perf_counter() - begun

        # DDP lays out its buckets in the first two steps.
        times = [max(call_for_both(step, pairs)) for _ in range(STEPS + 2)][2:]
        return statistics.median(times)

    alone = median_step(0.0, True) - median_step(0.0, False)
    compute = 2 * alone
    without, with_exchange = median_step(compute, False), median_step(compute, True)
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


def measure_gloo(compute):
    """Measures steps with DDP's own all-reduce over Gloo, through a like link.

    The link is between network namespaces. Where the machine has none, the report says why.
    """
    try:
        with SiteLab(LINK) as lab:
            return gloo_steps(lab, compute)
    except SiteLabError as error:
        print(f"!! SKIPPED: Gloo: {error}", file=sys.stderr)
        return {"skipped": str(error)}


def gloo_steps(lab, compute):
    """Runs ``gloo_ddp.py`` in each namespace. Returns the slower site's median step."""
    script = str(Path(__file__).with_name("gloo_ddp.py"))
    quick = ("--quick",) if QUICK else ()
    processes = []
    for rank, site in enumerate(SITES):
        program = (sys.executable, script, rank, ADDRESSES["east"], compute, STEPS, *quick)
        environment = {**os.environ, "GLOO_SOCKET_IFNAME": DEVICE}
        processes.append(lab.start(site, *program, stdout=subprocess.PIPE, env=environment))
    times = [float(process.communicate(timeout=600)[0]) for process in processes]
    control = Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text("ascii").strip()
    return {"step_seconds": max(times), "congestion_control": control}


class HookSwitch:
    """The state of ``switched_hook``: whether gradients are exchanged."""

    def __init__(self, state):
        self.state, self.exchanges = state, True


def switched_hook(switch, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Averages a bucket, or returns it as it is while the switch is off."""
    if switch.exchanges:
        return all_reduce_hook(switch.state, bucket)
    done = torch.futures.Future()
    done.set_result(bucket.buffer())
    return done


if __name__ == "__main__":
    main()
