"""The program torchrun, in a process that has PyTorch already."""

import os
import sys

from torch.distributed.elastic.rendezvous import registry
from torch.distributed.run import main

# A fork has the paths of its server, which has looked for entry points already.
sys.path += [path for path in os.environ["PYTHONPATH"].split(os.pathsep) if path not in sys.path]
registry._register_out_of_tree_handlers()
main()
