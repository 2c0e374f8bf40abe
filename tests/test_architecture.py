"""The shape of the package: who may import whom, and what nobody may call."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import fedilc

ROOMS = (
    *("algorithms", "data", "models", "config", "gradients", "aggregation", "penalties", "federation"),
    *("evaluation", "training", "runtimes", "api", "sklearn", "studies", "report", "cli"),
)
LOOSE = {"__init__", "__main__", "errors", "seeds", "section", "templating", "api", "sklearn"}
ROOT = Path(fedilc.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))
FORBIDDEN = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}


def module_name(path: Path) -> str:
    parts = ("fedilc", *path.relative_to(ROOT).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in FILES}


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


def test_every_room_is_there() -> None:
    assert {room(module) for module in MODULES} - {None} == set(ROOMS)


@pytest.mark.parametrize("name", ROOMS)
def test_a_room_never_imports_from_a_room_to_its_right(name: str) -> None:
    right = set(ROOMS[ROOMS.index(name) + 1 :])
    wrong = {
        (module, other)
        for module in MODULES
        if room(module) == name
        for other in imported(MODULES[module])
        if room(other) in right
    }
    assert not wrong


def test_the_top_of_the_package_holds_rooms_and_few_files() -> None:
    assert {path.stem for path in ROOT.glob("*.py")} == LOOSE


@pytest.mark.parametrize("module", ["fedilc.errors", "fedilc.seeds", "fedilc.section", "fedilc.templating"])
def test_what_every_room_may_use_imports_no_room(module: str) -> None:
    assert {room(name) for name in imported(MODULES[module])} <= {None}


TABLE_SETTINGS = "fedilc.data.tables.table_settings"
COMMON = [
    TABLE_SETTINGS,
    *("fedilc.seeds", "fedilc.errors", "fedilc.section"),
    *(module for module in MODULES if f"{module}.".startswith(("fedilc.algorithms.", "fedilc.config."))),
]


@pytest.mark.parametrize("module", COMMON)
def test_settings_are_read_without_torch(module: str) -> None:
    top = [node for node in tree(MODULES[module]).body if not is_type_checking(node)]
    names = {alias.name for node in top if isinstance(node, ast.Import) for alias in node.names}
    names |= {str(node.module) for node in top if isinstance(node, ast.ImportFrom)}
    assert "torch" not in {name.split(".")[0] for name in names}
    assert {room(name) for name in names - {TABLE_SETTINGS}} <= {None, "algorithms", "config"}


@pytest.mark.parametrize("name", fedilc.__all__)
def test_every_public_name_resolves(name: str) -> None:
    assert getattr(fedilc, name) is not None
    assert name in dir(fedilc)


def test_a_name_that_is_not_public_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        _ = fedilc.trian


@pytest.mark.parametrize("module", [name for name in MODULES if MODULES[name].name == "__init__.py"])
def test_what_a_package_says_it_exports_it_has(module: str) -> None:
    package = importlib.import_module(module)
    missing = [name for name in getattr(package, "__all__", []) if not hasattr(package, name)]
    assert not missing


@pytest.mark.parametrize("path", FILES, ids=[module_name(path) for path in FILES])
def test_no_file_unpickles_or_runs_text_as_code(path: Path) -> None:
    nodes = list(ast.walk(tree(path)))
    for node in nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            modules = [alias.name for alias in node.names] + [getattr(node, "module", None) or ""]
            assert FORBIDDEN.isdisjoint(name.split(".")[0] for name in modules)
    calls = {ast.unparse(node.func): ast.unparse(node) for node in nodes if isinstance(node, ast.Call)}
    assert calls.keys().isdisjoint({"eval", "exec", "compile", "__import__", "torch.load", "torch.jit.load"})
    for name, call in calls.items():
        assert not name.endswith(("np.load", "numpy.load")) or "allow_pickle=False" in call


OTHERS_FLAGS = {"--federation-config", "--node-config", "--run-config", "--stream", "--max-restarts"}
STARTS_COMMANDS = {"fedilc.studies.jobs": {"--set", "--out", "--resume"}}


def test_only_the_command_line_writes_its_flags() -> None:
    """Errors name options as Python does (`resume=True`); `cli/flags.py` writes them as flags."""
    wrong = {}
    for module, path in MODULES.items():
        if room(module) == "cli":
            continue
        nodes = list(ast.walk(tree(path)))
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
        found = {
            flag for text in texts for flag in re.findall(r"(?<![\w-])--[a-z]+(?:-[a-z]+)*(?![\w:-])", text)
        }
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


IN_CONTRACTS = {  # tested with all others of their kind in tests/contracts
    *(
        "aggregation.masks",
        "aggregation.mean",
        "algorithms.catalogue",
        "algorithms.parts",
        "federation.runtime",
    ),
    *("penalties.coral", "penalties.iga", "penalties.irm", "penalties.vrex"),
}
OWN_TESTS = [name for name in MODULES if not MODULES[name].stem.startswith("__")]


@pytest.mark.parametrize("module", [m for m in OWN_TESTS if m.removeprefix("fedilc.") not in IN_CONTRACTS])
def test_every_module_has_a_test_file_of_its_name(module: str) -> None:
    path = MODULES[module].relative_to(ROOT)
    name = "kernels" if path.parent.name == "_kernels" else path.stem
    folder = path.parent.parent if path.parent.name == "_kernels" else path.parent
    assert (Path(__file__).parent / folder / f"test_{name}.py").exists()


# Of torch, httpx, asyncio and NVIDIA FLARE, which have no public name for it.
OTHERS_PRIVATE = {"_forward_hooks", "_transport", "_pool", "_value", "_path_matches_prefix"}
SHARED = ("helpers", "oracles")
TESTS = [path for path in Path(__file__).parent.rglob("*.py") if path.parent.name not in SHARED]


@pytest.mark.parametrize("path", TESTS, ids=[str(path.relative_to(Path(__file__).parent)) for path in TESTS])
def test_no_test_reaches_into_private_names(path: Path) -> None:
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("fedilc"):
            private = {alias.name for alias in node.names if alias.name.startswith("_")}
            assert private <= {"_kernels", "__version__"}
        if isinstance(node, ast.Attribute) and re.fullmatch(r"_[a-z]\w*", node.attr):
            assert ast.unparse(node.value) in ("self", "cls") or node.attr in OTHERS_PRIVATE
