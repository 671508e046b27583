"""Lets a PyTorch that was installed without the CUDA libraries run on processors alone.

The builds of PyTorch that the package index has link with 4 GB of CUDA libraries, which a
machine without such a device never calls. `python stand_in_cuda.py` compiles small libraries of
the same names, beside PyTorch's own, in which every function returns "no such device". The script
is for tests. It needs `gcc` and `readelf`, and does nothing where the libraries exist.
"""

import importlib.util
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

#: The code `cudaErrorNoDevice`. It differs from the other libraries' codes for success.
CUDA_ERROR_NO_DEVICE = 100
#: Names of libraries that every system has.
SYSTEM_LIBRARY = re.compile(r"ld-linux|lib(c|m|dl|rt|pthread|gcc_s|stdc\+\+|gomp|z|util)[.-]")


def main():
    folder = Path(importlib.util.find_spec("torch").origin).parent / "lib"
    ours = sorted(folder.glob("*.so*"))
    versions = defaultdict(set)  # For each missing library, the symbol versions that are needed.
    # Names of undefined symbols by version, which may be `None`; and names of defined ones.
    wanted, defined = defaultdict(set), set()
    missing = set()
    for library in ours:
        missing |= {name for name in needed_libraries(library) if not exists(name, folder)}
        for file, version in versions_needed(library):
            versions[file].add(version)
        for name, version, is_defined in symbols(library):
            if is_defined:
                defined.add(name)
            else:
                wanted[version].add(name)
    # Symbols without a version are looked up in all libraries, so the first stand-in has them all.
    plain = {name for name in wanted[None] - defined if not name.startswith(("_ITM", "__gmon"))}
    for index, name in enumerate(sorted(missing)):
        sections = {version: wanted[version] for version in sorted(versions[name])}
        build_stand_in(folder / name, sections, plain if index == 0 else set())
    print(f"{len(missing)} stand-ins in {folder}")


def readelf(*arguments):
    """Returns the output of `readelf`."""
    return subprocess.run(
        ["readelf", "-W", *map(str, arguments)], check=True, capture_output=True, text=True
    ).stdout


def needed_libraries(library):
    """Returns the names of the libraries that a library links with."""
    return re.findall(r"\(NEEDED\).*\[(.+)\]", readelf("-d", library))


def exists(name, folder):
    """Returns whether a library exists, of the system or beside PyTorch."""
    if SYSTEM_LIBRARY.match(name) or (folder / name).exists():
        return True
    return any(folder.parent.parent.glob(f"nvidia/*/lib/{name}")) or any(
        folder.parent.parent.glob(f"*/lib/{name}")
    )


def versions_needed(library):
    """Yields each needed library and symbol version of a library."""
    file = None
    for line in readelf("-V", library).splitlines():
        if found := re.search(r" File: (\S+)", line):
            file = found[1]
        elif file and (found := re.search(r" Name: (\S+) .*Version: \d+", line)):
            yield file, found[1]


def symbols(library):
    """Yields name, version and whether it is defined of each dynamic symbol."""
    for line in readelf("--dyn-syms", library).splitlines():
        words = line.split()
        if len(words) < 8 or not words[0].endswith(":"):
            continue
        name, _, version = words[7].partition("@")
        is_weak = words[4] == "WEAK"
        if words[6] != "UND":
            yield name, None, True
        elif name and not is_weak:
            yield name, version.lstrip("@") or None, False


def build_stand_in(path, sections, plain):
    """Compiles a library with the symbols of each version, and `plain` ones without a version."""
    names = set(plain).union(*sections.values())
    source = "".join(
        f"long {name}(void) {{ return {CUDA_ERROR_NO_DEVICE}; }}\n" for name in sorted(names)
    )
    script = "".join(
        f"{version} {{ {' '.join(f'{name};' for name in sorted(names))} }};\n"
        if names
        else f"{version} {{ }};\n"
        for version, names in sections.items()
    )
    with tempfile.TemporaryDirectory() as folder:
        code, map_file = Path(folder, "stand_in.c"), Path(folder, "stand_in.map")
        code.write_text(source)
        map_file.write_text(script)
        line = ["gcc", "-shared", "-fPIC", "-fno-builtin", "-w", f"-Wl,-soname,{path.name}"]
        if script:
            line.append(f"-Wl,--version-script={map_file}")
        subprocess.run([*line, "-o", path, code], check=True)


if __name__ == "__main__":
    sys.exit(main())
