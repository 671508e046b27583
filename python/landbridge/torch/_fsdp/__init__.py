"""FSDP2 and HSDP over sites: the hook, and which gradients it or a process group gets."""
