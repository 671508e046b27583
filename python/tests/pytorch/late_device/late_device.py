"""An accelerator of PyTorch for tests, `late`, whose work is done as late as anything allows.

Its tensors lie in host memory, and its streams are queues of work. Nothing in a queue is done until
the host waits for its stream, or another stream that waits for it is done. So whoever forgets a
wait reads or writes elements too early.

It is PyTorch's device for other packages, `PrivateUse1`, without a compiler: a fallback in Python
carries out all operators. Such a device has no way to tell PyTorch of its streams, so
`LateDevice.install` puts streams and events in Python in the place of those of `torch.accelerator`.
"""

import collections
import contextlib
import threading

import torch
from torch.utils import _pytree, backend_registration

#: What tensors hold before their work is done, so that no test takes it for a result.
POISON = 113
CPU_KEYS = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)


class LateEvent:
    """A place in the work of a stream, as `torch.Event`."""

    def __init__(self, device, queue):
        self._device, self._queue, self._is_past = device, queue, False
        queue.append(self._pass)

    def synchronize(self):
        """Lets the host wait until the stream is there."""
        self._device.note_host_wait()
        self.come()

    def come(self):
        """Does the work of the stream up to this place."""
        with self._device.lock, torch.inference_mode():
            while not self._is_past:
                self._queue.popleft()()

    def _pass(self):
        self._is_past = True


class LateStream:
    """A queue of work, as `torch.Stream`."""

    def __init__(self, late):
        self.device, self.queue, self._late = torch.device("late:0"), collections.deque(), late

    def record_event(self):
        """Returns an event after the work so far."""
        with self._late.lock:
            return LateEvent(self._late, self.queue)

    def wait_event(self, event):
        """Lets the work that follows wait for an event of any stream."""
        with self._late.lock:
            self.queue.append(event.come)


class LateDevice:
    """The device, once in a process.

    `host_waits` counts how often each thread, by its name, has waited for an event.
    """

    def __init__(self):
        self.lock = threading.RLock()
        self.host_waits = collections.Counter()
        self._local = threading.local()
        # The memory of all tensors by its address. It is never given back.
        self._memory = {}
        backend_registration._setup_privateuseone_for_python_backend("late")
        self._default = LateStream(self)
        self._library = torch.library.Library("_", "IMPL")
        self._library.fallback(self._run_operator, "PrivateUse1")

    def install(self):
        """Lets PyTorch have the streams of this device in place of those of any other."""

        class Stream(LateStream):
            def __init__(stream, device):
                super().__init__(self)

        torch.Stream = Stream
        torch.accelerator.current_stream = self.current_stream
        torch.accelerator.set_stream = self.set_stream
        torch.accelerator.current_device_index = lambda: 0
        torch.accelerator.set_device_index = lambda index: None

    @contextlib.contextmanager
    def stream(self):
        """Makes a stream, on which this thread's work is done inside the context."""
        before = self.current_stream()
        self.set_stream(LateStream(self))
        try:
            yield
        finally:
            self.set_stream(before)

    def current_stream(self, device=None):
        """Returns this thread's stream, as `torch.accelerator.current_stream`."""
        return getattr(self._local, "stream", self._default)

    def set_stream(self, stream):
        """Chooses this thread's stream, as `torch.accelerator.set_stream`."""
        self._local.stream = stream

    def note_host_wait(self):
        """Counts a wait of this thread for an event."""
        with self.lock:
            self.host_waits[threading.current_thread().name] += 1

    def _await_stream(self):
        """Lets the host wait for this thread's stream."""
        self.current_stream().record_event().come()

    def _add(self, work):
        """Adds work to this thread's stream."""
        with self.lock:
            self.current_stream().queue.append(work)

    def _make_tensor(self, host):
        """Returns a tensor of the device that lies in the memory of a contiguous one."""
        return self._move_tensor(torch._C._acc.create_empty_tensor([0], host.dtype), host)

    def _move_tensor(self, tensor, host):
        """Lets a tensor of the device lie in the memory of a contiguous one, and returns it."""
        memory = torch._C._construct_storage_from_data_pointer
        storage = memory(host.data_ptr(), torch.device("late:0"), host.nbytes)
        self._memory[host.data_ptr()] = host.view(-1)
        whole = [storage, 0, list(host.shape), list(host.stride())]
        return torch.ops.aten.set_.source_Storage_storage_offset.redispatch(
            CPU_KEYS, tensor, *whole
        )

    def _host_tensor(self, value):
        """Returns the elements in host memory of a tensor of the device, and other values as they
        are."""
        if isinstance(value, torch.device) and value.type == "late":
            return torch.device("cpu")
        if not isinstance(value, torch.Tensor) or value.device.type != "late":
            return value
        memory = self._memory[value.untyped_storage().data_ptr()].view(value.dtype)
        # PyTorch asks for the elements themselves where they stand for negatives or conjugates.
        return memory.as_strided(value.shape, value.stride(), value.storage_offset())

    def _run_operator(self, operator, *arguments, **named):
        """Carries out an operator of PyTorch, as a device does: what it computes, later."""
        name = operator._schema.name
        if operator.is_view:
            # PyTorch's own code for it reads no elements.
            return operator.redispatch(CPU_KEYS, *arguments, **named)
        given = _pytree.tree_map(
            self._host_tensor, (tensors_for_numbers(operator, arguments), named)
        )
        with torch.inference_mode():
            if name == "aten::_copy_from":
                return self._copy(*arguments)
            if all(str(each.type) != "Tensor" for each in operator._schema.returns):
                # The host gets a number or a truth, and waits for it.
                self._await_stream()
                return operator(*given[0], **given[1])
            written = written_arguments(operator, arguments, named)
            if written:
                out = named.get("out")
                if out is not None and not out.numel():
                    # The operator gives it a shape.
                    given[1]["out"] = torch.empty(0, dtype=out.dtype)
                    self._move_tensor(out, operator(*given[0], **given[1]).fill_(POISON))
                self._add(lambda: operator(*given[0], **given[1]))
                return written[0] if len(written) == 1 else tuple(written)
            # It is computed once for the shapes, from what may be poison.
            results = operator(*given[0], **given[1])
        return _pytree.tree_map(lambda host: self._start_result(host, operator, given), results)

    def _start_result(self, host, operator, given):
        """Returns the tensor for the only result of an operator, which is computed later."""
        host = torch.full_like(host, POISON, memory_format=torch.contiguous_format)
        if any(isinstance(value, torch.Tensor) for value in _pytree.tree_leaves(given)):
            self._add(lambda: host.copy_(operator(*given[0], **given[1])))
        return self._make_tensor(host)

    def _copy(self, source, target, non_blocking=False):
        """Copies from the device, to it or in it. The host waits for what it gets, and nobody for
        what the device gets."""
        elements, place = self._host_tensor(source), self._host_tensor(target)
        if source.is_cpu and not non_blocking:
            # The caller may change them as soon as this returns.
            elements = elements.clone()
        self._add(lambda: place.copy_(elements))
        if target.is_cpu and not non_blocking:
            self._await_stream()
        return target


def tensors_for_numbers(operator, arguments):
    """Returns arguments with tensors where PyTorch hands a number over though it declares one."""
    declared = [str(each.type) for each in operator._schema.arguments]
    return tuple(
        torch.tensor(value)
        if kind == "Tensor" and isinstance(value, (int, float, complex))
        else value
        for kind, value in zip(declared, arguments)
    )


def written_arguments(operator, arguments, named):
    """Returns the arguments that an operator overwrites."""
    known = list(zip(operator._schema.arguments, arguments))
    known += [(each, named[each.name]) for each in operator._schema.arguments if each.name in named]
    return [value for each, value in known if each.alias_info and each.alias_info.is_write]
