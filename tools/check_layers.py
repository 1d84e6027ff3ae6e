#!/usr/bin/env python3
"""The rules of the house, checked as a test: which folder may include which, no circle between files or folders, at most
fifteen headers in a folder, one type to a name. Prints each place that breaks a rule. ARCHITECTURE.md has the reasons.

usage: check_layers.py [ROOT]        checks
       check_layers.py [ROOT] --figures   also prints sizes of files and folders
"""
import collections
import pathlib
import re
import sys

CORE = {"base", "config", "hashing", "pool", "kernels", "device", "kernels/cpu/instructions", "models", "models/config", "models/latent", "models/product", "models/quantization", "models/sampling", "models/text", "ipc",
        "ipc/channel", "actors"}
SHARED = {"base", "config", "pool", "pool/care", "ipc", "ipc/channel", "tools/program", "tools/privilege"}
# A folder may include itself and what is listed here. A folder that is not listed may not include anything of ours.
MAY_INCLUDE = {
    "base": set(),
    "config": {"base"},
    "hashing": {"base", "config"},
    "pool": {"base", "config", "hashing"},
    "pool/care": {"base", "config", "hashing", "pool"},
    "device": {"base", "config"},
    "kernels": {"base", "config"},
    "kernels/reference": {"base", "config", "kernels"},
    "kernels/cpu": {"base", "config", "kernels", "kernels/cpu/instructions", "kernels/cpu/packed", "kernels/cpu/plan"},
    "kernels/cpu/instructions": {"base", "config"},
    "kernels/cpu/packed": {"base", "config", "kernels", "kernels/cpu/instructions", "kernels/cpu/plan"},
    "kernels/cpu/plan": {"base", "config", "kernels"},
    "kernels/simt": set(),
    "kernels/cuda": {"base", "config", "kernels", "kernels/simt"},
    "models": {"base", "config", "kernels", "models/config", "models/latent", "models/product", "models/quantization"},
    "models/config": {"base", "config", "models/latent", "models/quantization"},
    "models/latent": {"base", "config", "models/product"},
    "models/product": {"base", "config", "kernels/cpu/instructions", "models/quantization"},
    "models/quantization": {"base", "config", "kernels/cpu/instructions"},
    "models/sampling": {"base", "config", "kernels"},
    "models/text": {"base"},
    "models/gpu": {"base", "config", "device", "kernels", "kernels/cuda", "kernels/cpu/instructions", "models", "models/config", "models/latent", "models/quantization"},
    "ipc": {"base", "config"},
    "ipc/channel": {"base", "config"},
    "client": {"base", "config", "ipc", "ipc/channel"},
    "actors": CORE - {"device"},
    "actors/gpu": CORE | {"models/gpu"},
    "tools/program": {"base", "config", "pool", "pool/care", "ipc"},
    "tools/privilege": {"base", "config"},
    "tools/placement": {"base", "config"},
    "tools/keeper": SHARED | {"tools/placement"},
    "tools/steward": SHARED,
    "tools/engine": CORE | SHARED | {"tools/placement", "actors/gpu", "models/gpu", "kernels/cuda"},
    "tools/replay": SHARED,
    "tools/serve": {"base", "config", "ipc/channel", "client", "models/text", "tools/program", "tools/serve/http", "tools/serve/hive",
                    "tools/serve/metrics", "tools/serve/page", "tools/serve/openai", "tools/serve/chat", "tools/serve/trace",
                    "tools/serve/turns", "tools/serve/model"},
    "tools/serve/tensor": {"base", "config"},
    "tools/serve/model": {"base", "ipc", "pool", "pool/care", "models/text", "client", "tools/serve/http", "tools/serve/hive",
                          "tools/serve/openai", "tools/serve/chat"},
    "tools/serve/trace": {"base"},
    "tools/serve/turns": {"base"},
    "tools/serve/http": {"base"},
    "tools/serve/hive": {"base", "client"},
    "tools/serve/page": {"base", "config", "pool", "pool/care", "tools/map", "tools/snapshot", "tools/serve/http", "tools/serve/metrics"},
    "tools/serve/metrics": {"base", "config", "pool", "pool/care", "ipc", "tools/snapshot", "tools/serve/http"},
    "tools/serve/openai": {"base", "ipc/channel", "client", "models/config", "models/text", "tools/serve/http", "tools/serve/hive", "tools/serve/tensor",
                           "tools/serve/trace", "tools/serve/turns"},
    "tools/serve/chat": {"base", "models/text", "client", "tools/serve/http", "tools/serve/hive", "tools/serve/openai",
                         "tools/serve/turns"},
    "tools/screen": {"base"},
    "tools/map": {"base", "config", "pool", "pool/care", "tools/screen"},
    "tools/snapshot": {"base", "config", "pool", "pool/care", "tools/map"},
    "tools/events": {"base", "config", "hashing", "pool", "pool/care", "tools/map", "tools/snapshot"},
    "tools/cli": SHARED | {"client", "device", "kernels", "kernels/cpu/instructions", "models", "models/config", "models/text", "tools/map", "tools/placement", "tools/replay", "tools/screen", "tools/serve",
                           "tools/serve/openai", "tools/serve/chat", "tools/serve/trace", "tools/events", "tools/snapshot", "tools/top"},
    "tools/top": {"base", "config", "pool", "pool/care", "tools/map", "tools/screen", "tools/snapshot"},
    "tools/bench": CORE | SHARED | {"client", "tools/replay"},
    "tools/bench/peers": CORE | {"tools/bench"},
    "tools/gpu": {"kernels/cuda"},
}
MOST_HEADERS = 15
HEADERS = (".hpp", ".cuh", ".h")
SOURCES = HEADERS + (".cpp", ".cu")


def project_files(root):
    tops = sorted({folder.split("/")[0] for folder in MAY_INCLUDE})
    return [p.relative_to(root) for top in tops for p in sorted((root / top).rglob("*")) if p.suffix in SOURCES]


def folder_of(path):
    """The folder with a rule of its own that holds the file: client/include/kvhive belongs to client."""
    parts = path.parent.parts
    for length in range(len(parts), 0, -1):
        if "/".join(parts[:length]) in MAY_INCLUDE:
            return "/".join(parts[:length])
    return str(path.parent)


def includes_of(root, path):
    for number, line in enumerate((root / path).read_text().splitlines(), 1):
        found = re.match(r'\s*#\s*include\s+"([^"]+)"', line)
        if not found:
            continue
        for target in (pathlib.Path(found[1]), path.parent / found[1], pathlib.Path("client/include") / found[1]):
            if (root / target).is_file():
                yield number, target
                break


def circles(edges):
    """Groups of nodes that reach each other (Tarjan's algorithm)."""
    index, low, stack, on_stack, found = {}, {}, [], set(), []

    def visit(node):
        index[node] = low[node] = len(index)
        stack.append(node)
        on_stack.add(node)
        for other in edges.get(node, ()):
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in on_stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            group = []
            while not group or group[-1] != node:
                group.append(stack.pop())
                on_stack.discard(group[-1])
            if len(group) > 1:
                found.append(sorted(group))

    for node in sorted(edges):
        if node not in index:
            visit(node)
    return found


def broken_lines(root, path):
    """Rules about single lines."""
    is_peer = path.is_relative_to("tools/bench/peers")  # what kvhive is compared with
    for number, line in enumerate((root / path).read_text().splitlines(), 1):
        if not is_peer and re.search(r"#\s*include\s+<boost/interprocess/(sync|managed|containers|allocators)", line):
            yield f"{path}:{number}: Boost's locks and containers do not survive a kill"
        if path.suffix == ".hpp" and re.match(r"\s*(static |virtual |inline |constexpr )*Expected<.*>\s+\w+\(", line):
            yield f"{path}:{number}: a function that returns an error is [[nodiscard]]"
        if "<caf/" in line and str(path) != "actors/protocol.hpp":
            yield f"{path}:{number}: CAF shows in actors/protocol.hpp only"


def types_in(text):
    """Full names of the types that are defined at namespace scope and seen outside of this file."""
    scope = []
    for found in re.finditer(r"^(?:(?:inline )?namespace ?([\w:]*) ?\{|(\}+)  // namespace"
                             r"|(?:struct|class|union|enum class|enum)(?: alignas\([^)]*\))? (\w+)\b(?!::)([^;{]*[;{]))", text, re.M):
        opened, closed, name, rest = found.groups()
        if closed:
            del scope[-1:]
        elif name is None:
            scope.append(opened)
        elif rest.endswith("{") and not rest.startswith("<") and "" not in scope and "HWY_NAMESPACE" not in scope:
            yield "::".join([*scope, name])


def check(root):
    broken = []
    types = collections.defaultdict(list)
    file_edges, folder_edges = collections.defaultdict(set), collections.defaultdict(set)
    headers = collections.Counter()
    for path in project_files(root):
        folder = folder_of(path)
        headers[str(path.parent)] += path.suffix in HEADERS
        if folder not in MAY_INCLUDE:
            broken.append(f"{path}: folder {folder}/ has no rule in check_layers.py")
        broken.extend(broken_lines(root, path))
        for name in types_in((root / path).read_text()):
            types[name].append(str(path))
        for number, target in includes_of(root, path):
            other = folder_of(target)
            if target.parts[0] == "tests":
                broken.append(f"{path}:{number}: nothing outside tests/ may include tests/")
            elif other != folder and other not in MAY_INCLUDE.get(folder, set()):
                broken.append(f"{path}:{number}: {folder}/ must not include {other}/")
            if other != folder:
                folder_edges[folder].add(other)
            if target.with_suffix("") != path.with_suffix(""):  # header and source count as one
                file_edges[str(path.with_suffix(""))].add(str(target.with_suffix("")))
    broken += ["files include each other in a circle: " + ", ".join(group) for group in circles(file_edges)]
    broken += ["folders include each other in a circle: " + ", ".join(group) for group in circles(folder_edges)]
    # The linker takes one of their destructors for both.
    broken += [f"{name} is defined in {' and in '.join(paths)}" for name, paths in sorted(types.items()) if len(paths) > 1]
    broken += [f"{folder}/ has {count} headers, more than {MOST_HEADERS}: give it sub-folders by topic"
               for folder, count in sorted(headers.items()) if count > MOST_HEADERS]
    return broken


def print_figures(root):
    sizes = collections.defaultdict(list)
    for path in project_files(root):
        sizes[folder_of(path)].append(len((root / path).read_text().splitlines()))
    everything = sorted(size for lines in sizes.values() for size in lines)
    sizes["all"] = everything
    print(f"{'folder':20} {'files':>6} {'lines':>7} {'median':>7} {'p90':>5} {'max':>5} {'under 30':>9}")
    for folder, lines in sorted(sizes.items(), key=lambda entry: (entry[0] == "all", entry[0])):
        lines.sort()
        print(f"{folder:20} {len(lines):6} {sum(lines):7} {lines[len(lines) // 2]:7} {lines[len(lines) * 9 // 10]:5} "
              f"{lines[-1]:5} {sum(size < 30 for size in lines):9}")


def main():
    arguments = [argument for argument in sys.argv[1:] if not argument.startswith("--")]
    root = pathlib.Path(arguments[0] if arguments else ".")
    if "--figures" in sys.argv:
        print_figures(root)
    broken = check(root)
    print("\n".join(broken) or "the rules of the house hold")
    return bool(broken)


if __name__ == "__main__":
    sys.exit(main())
