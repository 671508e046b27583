"""One trainer of the torch tests, as a process of its own.

Sends messages over a pipe: dictionaries with the loss of each step, and at the end the weights.
"""

import contextlib
import gc
import os
import threading
import time

import torch
import torch.distributed as dist

import landbridge
import landbridge.torch
from landbridge.torch import FlatGrads, State, UnevenSampler, all_reduce_hook, resume

STEPS = 12
#: Samples of the global batch.
GLOBAL_BATCH = 16


def make_model(seed):
    torch.manual_seed(seed)
    return torch.nn.Sequential(
        torch.nn.Linear(12, 64), torch.nn.Tanh(), torch.nn.Linear(64, 65), torch.nn.Tanh(),
        torch.nn.Linear(65, 3),
    )  # fmt: skip


def make_data():
    generator = torch.Generator().manual_seed(5)
    inputs = torch.randn(STEPS * GLOBAL_BATCH, 12, generator=generator)
    return inputs, (inputs[:, :3] ** 2).argmax(1)


def loss_of(model, data, indices):
    inputs, labels = data
    return torch.nn.functional.cross_entropy(model(inputs[indices]), labels[indices])


def make_optimizer(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


class Trainer:
    """One trainer, as its specification says; see `training_run.specs_of`."""

    def __init__(self, spec, pipe):
        self.spec = spec
        self.pipe = pipe
        self.group = landbridge.connect(
            config=spec["config"],
            rank=spec["rank"],
            job=spec.get("job"),
            arena="16 MiB",
            timeout=60,
        )
        self.module = make_model(seed=spec["rank"] + spec.get("local_rank", 0))
        self.data = make_data()
        self.optimizer = make_optimizer(self.module)
        #: The path of the checkpoint, or `None`.
        self.checkpoint = spec.get("checkpoint")
        #: The process group inside of which gradients are reduced first.
        self.site = None
        #: The step under way.
        self.step = 0
        #: When the step was begun, or this trainer was released from a hold, in seconds.
        self.begun = 0.0
        #: Whether averages were lost already; see `lose_averages`.
        self.lost = False
        if "hold_between" in spec:
            self.hold_between_buckets()

    def send(self, **message):
        """Sends a message to the test."""
        self.pipe.send(message)

    def make_sampler(self):
        """Makes the sampler of this trainer's batches."""
        options = {"process_group": self.site, "shuffle": False}
        return UnevenSampler(self.data[1], self.group, GLOBAL_BATCH, **options)

    def list_batches(self):
        """Returns this trainer's batch of each step."""
        world = self.spec.get("ranks")
        if world is None:
            return list(self.make_sampler())
        # All trainers of all sites have batches of one size.
        mine, share = self.spec["trainer"], GLOBAL_BATCH // world
        first = [step * GLOBAL_BATCH + mine * share for step in range(STEPS)]
        return [list(range(begin, begin + share)) for begin in first]

    def run(self):
        """Trains to the end, and sends digest and weights."""
        self.resume(self.load_checkpoint())
        take_step = self.prepare_flat() if self.spec["mode"] == "flat" else self.prepare_ddp()
        if "speeds" in self.spec:
            self.train_with_drift(take_step)
        else:
            self.train(take_step)
        landbridge.torch.check_module(self.module, self.group)
        self.send(digest=landbridge.torch.module_digest(self.module))
        weights = torch.cat([p.detach().reshape(-1) for p in self.module.parameters()])
        self.send(weights=weights.tolist())
        self.group.barrier()

    def train_with_drift(self, take_step):
        """Trains while the split follows speeds that drift. The test gives this trainer's speed."""
        speeds, sampler = self.spec["speeds"], self.make_sampler()
        for epoch in range(len(speeds) // len(sampler)):
            sampler.set_epoch(epoch)
            for batch in sampler:
                assert len(batch) == sampler.share
                self.set_weight(batch)
                loss = take_step(batch)
                self.optimizer.step()
                self.send(step=self.step, loss=loss, batch=batch)
                sampler.end_step(len(batch) / speeds[self.step], timeout=60)
                self.step += 1

    def set_weight(self, batch):
        """Weights the gradients of this trainer by the samples of its batch."""
        if self.spec["mode"] == "flat":
            self.grads.weight = len(batch)
        else:
            self.state.weight = len(batch)

    def train(self, take_step):
        """Takes all steps, and begins a step again after a failure."""
        batches = self.list_batches()
        if self.spec.get("ranks") is None:
            self.set_weight(batches[0])
        while self.step < STEPS:
            if self.step == self.spec.get("hold_at"):
                self.hold()
            if self.step == self.spec.get("fill_at"):
                kept = self.fill_arena()  # noqa: F841
            try:
                self.begun = time.monotonic()
                loss = take_step(batches[self.step])
                self.lose_averages()
            except landbridge.CollectiveFailed as failure:
                details = {"step": self.step, "text": str(failure), "after_s": self.after_s()}
                self.send(failed=type(failure).__name__, **details)
                self.recover(failure)
                self.resume(self.step)
                continue
            self.optimizer.step()
            self.send(step=self.step, loss=loss)
            self.step += 1
            self.save_checkpoint()

    def resume(self, step):
        """Agrees with all ranks on the step, and takes their state if they are ahead."""
        self.step = resume(self.group, step, self.module, self.optimizer, timeout=60)

    def hold(self):
        """Tells the test that this trainer waits, and waits for its message."""
        self.send(held=self.step)
        self.pipe.recv()
        self.begun = time.monotonic()

    def after_s(self):
        """Returns the seconds since the step was begun or this trainer was released."""
        return time.monotonic() - self.begun

    def hold_between_buckets(self):
        """Holds once, after the first average of the step and before the second bucket."""
        start, first, held = self.group.all_reduce_async, [], []

        def all_reduce_async(*arguments, **options):
            if self.step != self.spec["hold_between"] or held:
                return start(*arguments, **options)
            if first:
                held.append(True)
                first[0].wait(60)
                self.hold()
                return start(*arguments, **options)
            first.append(start(*arguments, **options))
            return first[0]

        self.group.all_reduce_async = all_reduce_async

    def lose_averages(self):
        """Holds once after the averages have come, while the test restarts the gateway, which has
        the effect of lost averages."""
        if self.step == self.spec.get("lose_at") and not self.lost:
            self.lost = True
            self.hold()
            self.group.barrier()

    def fill_arena(self):
        """Returns arrays that fill the arena."""
        kept = []
        for nbytes in (1 << 20, 1 << 14, 64):
            with contextlib.suppress(landbridge.ArenaFull):
                while True:
                    kept.append(self.group.empty(nbytes, torch.uint8))
        return kept

    def prepare_flat(self):
        """Prepares training with `FlatGrads`. Returns a function that takes a step."""
        grads = self.grads = FlatGrads(self.module, self.group, bucket_bytes=8192)

        def take_step(batch):
            grads.zero()
            loss = loss_of(self.module, self.data, batch)
            loss.backward()
            grads.wait()
            return loss.item()

        self.recover = lambda failure: self.group.recover(failure, 60)
        return take_step

    def prepare_ddp(self):
        """Prepares training with DDP. Returns a function that takes a step."""
        sharded = self.spec["mode"] == "sharded"
        dist.init_process_group(
            "gloo",
            init_method=self.spec["store"],
            rank=self.spec["local_rank"],
            world_size=self.spec["local_size"],
        )
        if sharded:
            self.site = self.make_part_group() if "parts" in self.spec else dist.group.WORLD
        model = torch.nn.parallel.DistributedDataParallel(
            self.module,
            process_group=self.site,
            bucket_cap_mb=0.01,
            # Buckets stay as they are, so that a restarted trainer has equal ones.
            find_unused_parameters=self.checkpoint is not None,
        )
        self.state = State(self.group, self.site)
        model.register_comm_hook(self.state, all_reduce_hook)

        def take_step(batch):
            self.optimizer.zero_grad()
            loss = loss_of(model, self.data, batch)
            with self.state.typed_errors():
                self.begun = time.monotonic()
                try:
                    loss.backward()
                except RuntimeError as error:
                    self.send(raised=str(error), after_s=self.after_s())
                    raise
            return loss.item()

        self.recover = lambda failure: self.state.recover(failure, 60)
        return take_step

    def make_part_group(self):
        """Makes a part of the default group a site, after another state was dropped."""
        site = dist.new_subgroups_by_enumeration(self.spec["parts"])[0]
        State(self.group, site)
        while any(thread.name == "landbridge-gather" for thread in threading.enumerate()):
            gc.collect()
            threading.Event().wait(0.01)
        return site

    def save_checkpoint(self):
        """Saves step, model and optimizer, if the trainer has a checkpoint."""
        if self.checkpoint:
            kept = {"step": self.step, "model": self.module.state_dict()}
            kept["optimizer"] = self.optimizer.state_dict()
            torch.save(kept, self.checkpoint + ".new")
            os.replace(self.checkpoint + ".new", self.checkpoint)

    def load_checkpoint(self):
        """Loads the checkpoint. Returns its step, or 0 without one."""
        if not self.checkpoint or not os.path.exists(self.checkpoint):
            return 0
        kept = torch.load(self.checkpoint)
        self.module.load_state_dict(kept["model"])
        self.optimizer.load_state_dict(kept["optimizer"])
        return kept["step"]


def main(spec, pipe):
    Trainer(spec, pipe).run()
    pipe.close()
    # Gloo's threads need not be waited for.
    os._exit(0)
