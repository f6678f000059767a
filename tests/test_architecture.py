"""The page on the architecture names files and functions; they must be there."""

import ast
import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs/explanation/architecture.md").read_text(encoding="utf-8")
PLACES = (ROOT, ROOT / "src/leasedkeyq")
NAMED = sorted(set(re.findall(r"`([\w./-]+(?:\.\w+|/))`", PAGE)))
WITHIN = re.findall(r"`(\w[\w.]*)`(?: and `(\w+)`)? (?:in|of) `([\w/]+\.\w+)`", PAGE)


@pytest.mark.parametrize("path", [name for name in NAMED if "/" in name or ".py" in name])
def test_what_the_page_names_is_there(path: str) -> None:
    assert any((place / path).exists() for place in PLACES)


@pytest.mark.parametrize("first, second, path", WITHIN)
def test_functions_that_the_page_names_are_there(first: str, second: str, path: str) -> None:
    found = next(place / path for place in PLACES if (place / path).exists())
    text = found.read_text(encoding="utf-8")
    for name in filter(None, (first.rpartition(".")[2], second)):
        assert re.search(rf"\b{name}\b", text)


def test_every_folder_of_the_package_is_on_the_page() -> None:
    folders = {path.name for path in (ROOT / "src/leasedkeyq").iterdir() if path.is_dir()}
    assert not {name for name in folders - {"__pycache__"} if f"`{name}/`" not in PAGE}


def test_every_folder_says_what_lives_there_and_where_to_begin() -> None:
    for found in (ROOT / "src/leasedkeyq").rglob("__init__.py"):
        text = found.read_text(encoding="utf-8")
        assert text.startswith('"""'), found
        if found.parent.name != "leasedkeyq":
            assert re.search(r"[Bb]egin", text.split('"""')[1]), found


@pytest.mark.parametrize(
    "path", sorted((ROOT / "src/leasedkeyq/cli").glob("*.py")), ids=lambda path: path.name
)
def test_the_command_line_uses_public_names_only(path: Path) -> None:
    """So whatever it does, a program of somebody else can do."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("leasedkeyq"):
            assert node.module is not None
            if not node.module.startswith("leasedkeyq.cli."):
                public = {*importlib.import_module(node.module).__all__, "__version__"}
                assert {alias.name for alias in node.names} <= public
        if isinstance(node, ast.Attribute) and ast.unparse(node) != "os._exit":
            if ast.unparse(node.value) == "self":
                continue  # what a class of the command line keeps for itself
            assert not node.attr.startswith("_") or node.attr.endswith("__"), ast.unparse(node)


def test_one_name_of_a_type_in_one_place() -> None:
    """A reader who searches for a name finds one thing."""
    places: dict[str, list[str]] = {}
    variables: set[str] = set()
    for path in (ROOT / "src/leasedkeyq").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.Assign(
                    value=ast.Call(func=ast.Name("TypeVar"), args=[ast.Constant(name)])
                ):
                    variables.add(str(name))
                case _:
                    pass
            if (name := _named_type(node)) is not None:
                places.setdefault(name.lstrip("_"), []).append(str(path.relative_to(ROOT)))
    assert not {name: found for name, found in places.items() if len(found) > 1}
    assert not variables & places.keys(), "a type variable has the name of a type"


def _named_type(node: ast.AST) -> str | None:
    """The name of a class, or of an alias such as ``Row: TypeAlias = tuple[Any, ...]``."""
    match node:
        case ast.ClassDef(name=name):
            return name
        case ast.AnnAssign(target=ast.Name(id=name), annotation=ast.Name(id="TypeAlias")):
            return name
        case ast.Assign(targets=[ast.Name(id=name)], value=ast.Subscript()):
            # An alias that does not say so. A constant has capitals only.
            return name if name.lstrip("_")[0].isupper() and not name.isupper() else None
        case _:
            return None
