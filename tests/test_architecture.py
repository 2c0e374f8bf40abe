"""The shape of the package: who may import whom, and what nobody may call."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import fedilc

ROOMS = (
    *("algorithms", "aggregation", "storage", "data", "models", "config", "optimizers", "gradients"),
    *(
        "penalties",
        "federation",
        "privacy",
        "evaluation",
        "training",
        "runtimes",
        "api",
        "sklearn",
        "studies",
        "report",
    ),
    *("cli", "paper"),
)
LOOSE = {"__init__", "__main__", "errors", "progress", "seeds", "section", "api", "sklearn"}
COMMON = {"fedilc.errors", "fedilc.progress", "fedilc.seeds", "fedilc.section"}
PAPERS_DATA = re.compile(r"color.?mnist|mnist|cifar|eicu", re.IGNORECASE)
FORBIDDEN = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
NEVER_CALLED = {"eval", "exec", "compile", "__import__", "torch.jit.load"}
ROOT = Path(fedilc.__file__).parent


def module_name(path: Path) -> str:
    parts = ("fedilc", *path.relative_to(ROOT).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in sorted(ROOT.rglob("*.py"))}


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")


def running(node: ast.AST) -> Iterator[ast.AST]:
    """Every node below one that can run: not the bodies of `if TYPE_CHECKING`."""
    for child in ast.iter_child_nodes(node):
        if is_type_checking(child):
            assert isinstance(child, ast.If)
            for other in child.orelse:
                yield from (other, *running(other))
        else:
            yield child
            yield from running(child)


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def imported(path: Path) -> set[str]:
    """The names of all modules, and of what is taken from them, that a file imports when it runs."""
    names = set()
    for node in running(tree(path)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import; write it in full"
            names |= {f"{node.module}.{alias.name}" for alias in node.names} | {str(node.module)}
    return names


def room(module: str) -> str | None:
    parts = module.split(".")
    return parts[1] if parts[0] == "fedilc" and len(parts) > 1 and parts[1] in ROOMS else None


def test_the_package_holds_its_rooms_and_few_files_beside_them() -> None:
    assert {room(module) for module in MODULES} - {None} == set(ROOMS)
    assert {path.stem for path in ROOT.glob("*.py")} == LOOSE


def test_a_room_never_imports_from_a_room_to_its_right() -> None:
    wrong = [
        (module, other)
        for module, path in MODULES.items()
        for here in [room(module)]
        for there in (room(other) for other in imported(path))
        if there is not None and here is not None and ROOMS.index(there) > ROOMS.index(here)
        for other in [there]
    ]
    assert not wrong
    assert {room(name) for module in COMMON for name in imported(MODULES[module])} <= {None}


def test_only_the_papers_own_folder_names_its_data_sets() -> None:
    outside = (path for module, path in MODULES.items() if room(module) != "paper")
    found = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for path in outside
        for line in path.read_text(encoding="utf-8").splitlines()
        if PAPERS_DATA.search(line)
    ]
    assert not found


def test_settings_and_plug_ins_are_read_without_torch() -> None:
    light = [module for module in MODULES if room(module) in ("algorithms", "config")]
    light += ["fedilc.data.sources", "fedilc.paper.plugin", "fedilc.paper.commands"]
    code = f"import sys, {', '.join(light)}; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_every_public_name_resolves() -> None:
    for name in fedilc.__all__:
        assert getattr(fedilc, name) is not None
        assert name in dir(fedilc)
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        _ = fedilc.trian
    for module, path in MODULES.items():
        if path.name == "__init__.py":
            package = importlib.import_module(module)
            assert not [name for name in getattr(package, "__all__", []) if not hasattr(package, name)]


def test_no_file_unpickles_or_runs_text_as_code() -> None:
    for module, path in MODULES.items():
        nodes = list(ast.walk(tree(path)))
        for node in nodes:
            if isinstance(node, ast.Import | ast.ImportFrom):
                modules = [alias.name for alias in node.names] + [getattr(node, "module", None) or ""]
                assert FORBIDDEN.isdisjoint(name.split(".")[0] for name in modules), module
        calls = {ast.unparse(node.func): ast.unparse(node) for node in nodes if isinstance(node, ast.Call)}
        assert calls.keys().isdisjoint(NEVER_CALLED), module
        for name, call in calls.items():
            assert not name.endswith(("np.load", "numpy.load")) or "allow_pickle=False" in call, module
            assert name != "torch.load" or "weights_only=True" in call, module


OTHERS_FLAGS = {"--federation-config", "--node-config", "--run-config", "--stream", "--max-restarts"}
STARTS_COMMANDS = {"fedilc.studies.jobs": {"--set", "--out", "--resume"}}
FLAG = re.compile(r"(?<![\w-])--[a-z]+(?:-[a-z]+)*(?![\w:-])")


def test_only_the_command_line_writes_its_flags() -> None:
    """Errors name options as Python does (`resume=True`); `cli/options.py` writes them as flags."""
    wrong = {}
    commands = {"fedilc.paper.commands", *(module for module in MODULES if room(module) == "cli")}
    for module in MODULES.keys() - commands:
        nodes = list(ast.walk(tree(MODULES[module])))
        docstrings = {
            id(node.body[0].value)
            for node in nodes
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
            and node.body
            and isinstance(node.body[0], ast.Expr)
        }
        texts = (
            node.value
            for node in nodes
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings
        )
        found = {flag for text in texts for flag in FLAG.findall(text)}
        if left := found - OTHERS_FLAGS - STARTS_COMMANDS.get(module, set()):
            wrong[module] = left
    assert not wrong


def test_no_two_places_share_ten_lines() -> None:
    found: dict[tuple[str, ...], str] = {}
    for module, path in MODULES.items():
        lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
        code = [line for line in lines if line and not line.startswith(("from ", "import ", "#"))]
        for start in range(len(code) - 9):
            other = found.setdefault(tuple(code[start : start + 10]), f"{module} from line of code {start}")
            assert other == f"{module} from line of code {start}", code[start : start + 10]


# Of torch, httpx, asyncio and NVIDIA FLARE, which have no public name for it.
OTHERS_PRIVATE = {"_forward_hooks", "_transport", "_pool", "_value", "_path_matches_prefix"}
TESTS = Path(__file__).parent
SHARED = ("helpers", "oracles")


def test_no_test_reaches_into_private_names() -> None:
    for path in (path for path in TESTS.rglob("*.py") if path.parent.name not in SHARED):
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("fedilc"):
                private = {alias.name for alias in node.names if alias.name.startswith("_")}
                assert private <= {"_kernels", "__version__"}, path
            if isinstance(node, ast.Attribute) and re.fullmatch(r"_[a-z]\w*", node.attr):
                own = ast.unparse(node.value) in ("self", "cls")
                assert own or node.attr in OTHERS_PRIVATE, f"{path}: {ast.unparse(node)}"
