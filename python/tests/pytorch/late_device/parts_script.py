"""Stages a tensor of three parts on the device that works late, as a collective does.

Prints how often the host has waited: after the begin, after each part, and at the end.
"""

import json

import torch

from late_device import LateDevice


def main():
    device = LateDevice()
    # The package asks which devices there are.
    from landbridge.torch._c10d.flat_tensors import FlatTensor
    from landbridge.torch._device_copies import _PART_BYTES

    device.install()
    length = _PART_BYTES // 4
    expected = torch.arange(3 * length, dtype=torch.float32)
    with device.stream():
        tensor = expected.to("late", non_blocking=True)
        flat = FlatTensor(tensor, is_read=True, is_written=True)
        waits = [device.host_waits.total()]
        for begin in range(0, len(expected), length):
            end = begin + length
            piece = flat.piece(begin, end)
            assert torch.equal(piece, expected[begin:end])
            piece.neg_()
            flat.start_copy_back(begin, end)
            waits.append(device.host_waits.total())
        flat.copy_back()
        waits.append(device.host_waits.total())
        assert torch.equal(tensor.cpu(), -expected)
    print(json.dumps({"waits": waits}), flush=True)


if __name__ == "__main__":
    main()
