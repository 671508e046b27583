"""An accelerator of PyTorch for tests, `late`, whose work is done as late as anything allows.

Its tensors lie in host memory, and its streams are queues of work. Nothing in a queue is done until
the host waits for its stream, so whoever forgets a wait reads or writes elements too early. Where
the host waits for the whole device, the oldest stream goes first: only a stream orders work.

It is PyTorch's device for other packages, `PrivateUse1`, without a compiler: a fallback in Python
carries out all operators. Such a device has no way to tell PyTorch of its streams, so tests
replace `torch.accelerator.synchronize`, and enter streams by `LateDevice.stream`.
"""

import collections
import contextlib
import threading

import torch
from torch.utils import _pytree, backend_registration

#: What tensors hold before their work is done, so that no test takes it for a result.
POISON = 113
CPU_KEYS = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)


class LateDevice:
    """The device, once in a process."""

    def __init__(self):
        # The work of each stream; that of the default stream is the first.
        self._queues = [collections.deque()]
        self._lock = threading.RLock()
        self._local = threading.local()
        # The memory of all tensors by its address. It is never given back.
        self._memory = {}
        backend_registration._setup_privateuseone_for_python_backend("late")
        self._library = torch.library.Library("_", "IMPL")
        self._library.fallback(self._run_operator, "PrivateUse1")

    @contextlib.contextmanager
    def stream(self):
        """Makes a stream, on which this thread's work is done inside the context."""
        before = self._queue()
        with self._lock:
            self._queues.append(collections.deque())
            self._local.queue = self._queues[-1]
        try:
            yield
        finally:
            self._local.queue = before

    def synchronize(self, device=None):
        """Waits for all streams, as `torch.accelerator.synchronize`. The oldest goes first."""
        assert torch.device(device).type == "late"
        with self._lock:
            for queue in self._queues:
                self._do(queue)

    def _queue(self):
        """Returns the work of this thread's stream."""
        return getattr(self._local, "queue", self._queues[0])

    def _do(self, queue):
        """Does all work of a stream."""
        with self._lock, torch.inference_mode():
            while queue:
                queue.popleft()()

    def _add(self, work):
        """Adds work to this thread's stream."""
        with self._lock:
            self._queue().append(work)

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
                self._do(self._queue())
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
            self._do(self._queue())
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
