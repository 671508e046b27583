"""Processes with PyTorch, forked from a server that has imported it once.

An import of PyTorch takes six seconds of processor time, more than most trainings of the tests.
"""

import multiprocessing
import os
import runpy
import sys
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path

#: The module that the server imports, as every optimizer of PyTorch does. Before Python 3.13 the
#: server finds no modules of the tests, and is silent about what it does not find.
SERVER_MODULE = "torch._dynamo"
#: Whether PyTorch was imported before this module, as it is in a fork of the server.
HAS_TORCH = SERVER_MODULE in sys.modules
#: The context whose server forks.
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload([SERVER_MODULE])


def start_fork(module, *arguments):
    """Returns a process that calls `main` of a module with some arguments."""
    process = FORKS.Process(target=_call_main, args=(module, arguments), daemon=True)
    process.start()
    return process


class ForkedScript:
    """A process that runs a script as a program, with variables of the environment.

    `stdout` and `stderr` are files; without `stderr` the process has the one of the server.
    `imports` names modules that are imported before the script.
    """

    def __init__(self, script, *arguments, variables, stdout, stderr=None, imports=()):
        words, environment = [str(script), *arguments], {**os.environ, **variables}
        files = [stdout] if stderr is None else [stdout, stderr]
        sent = [Connection(os.dup(file.fileno()), readable=False) for file in files]
        self._process = start_fork(__name__, words, environment, sent, imports)
        for file in sent:
            file.close()

    def wait(self):
        """Returns the exit code; below 0 after a signal."""
        self._process.join()
        return self._process.exitcode

    def kill(self):
        """Kills the process."""
        self._process.kill()


def main(words, environment, files, imports):
    """Runs a script in this process."""
    for descriptor, file in enumerate(files, 1):
        os.dup2(file.fileno(), descriptor)
        file.close()
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = words
    sys.path.insert(0, str(Path(words[0]).parent))
    for name in imports:
        import_module(name)
    runpy.run_path(words[0], run_name="__main__")


def _call_main(module, arguments):
    assert HAS_TORCH, f"the server did not import {SERVER_MODULE} before it forked this process"
    # PyTorch has read the variable for it already.
    sys.modules["torch"].set_num_threads(1)
    import_module(module).main(*arguments)
