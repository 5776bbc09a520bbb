"""Every public name is in the reference, and its docstring says what its arguments are.

`tests/docs/public_names.py` has the rule for what is public.
"""

from __future__ import annotations

import doctest
import importlib
import inspect
import pickle
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

import celery_throttle
from celery_throttle import Throttle
from tests.docs import public_names
from tests.docs.child import run_in_child
from tests.docs.pages import DOCS, read
from tests.docs.public_names import PublicName

pytest.importorskip("sphinx")
pytestmark = pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")  # of extensions

NAMES = public_names.find_all()

#: The first line of the other twin, which names the one with the arguments.
_TWIN = re.compile(r"The asyncio twin of :(?:meth|func):`(\w+)`")


def _own_doc(value: Any) -> str:
    if isinstance(value, (classmethod, staticmethod)):
        value = value.__func__
    doc = vars(value).get("__doc__") if inspect.isclass(value) else value.__doc__
    return inspect.cleandoc(doc or "")


@pytest.fixture
def documented(tmp_path: Path) -> set[str]:
    """The names that the pages of the reference define, by each of their paths."""
    command = (sys.executable, "-m", "sphinx", "-q", "-b", "dummy", "-d", str(tmp_path))
    subprocess.run([*command, str(DOCS), str(tmp_path / "site")], check=True)
    environment = (tmp_path / "environment.pickle").read_bytes()
    built = pickle.loads(environment)  # noqa: S301  # it was written just now
    objects = built.domaindata["py"]["objects"].items()
    return {name for name, entry in objects if entry.docname.startswith("reference/")}


def test_each_public_name_is_in_the_reference(documented: set[str]) -> None:
    missing = [name for name, one in sorted(NAMES.items()) if not {*_paths(one)} & documented]
    assert not missing, f"no page of docs/reference has {', '.join(missing)}"


@pytest.mark.parametrize("name", sorted(NAMES))
def test_a_public_name_has_a_docstring(name: str) -> None:
    one = NAMES[name]
    if one.is_field:
        assert one.owner is not None
        attribute = name.rpartition(".")[2]
        assert _names(_docs_of_class(one.owner), attribute), f"{one.owner} says nothing of it"
    elif inspect.isclass(one.value) or callable(one.value) or isinstance(one.value, property):
        assert _own_doc(one.value), f"{name} has no docstring"


@pytest.mark.parametrize("name", sorted(NAMES))
def test_a_docstring_names_all_arguments(name: str) -> None:
    one = NAMES[name]
    if one.is_field or not callable(one.value):
        return
    if inspect.isclass(one.value):
        if name in _without_constructor():
            return
        doc = _docs_of_class(one.value)
    else:
        doc = _own_doc(one.value)
        twin = _TWIN.match(doc)
        if twin is not None:
            scope = one.owner or importlib.import_module(one.value.__module__)
            doc = _own_doc(inspect.getattr_static(scope, twin[1]))
        if one.owner is not None:
            doc += _docs_of_class(one.owner)
    missing = [argument for argument in _arguments(one.value) if not _names(doc, argument)]
    assert not missing, f"the docstring of {name} does not name {', '.join(missing)}"


@pytest.mark.parametrize(
    "name",
    sorted(
        name for name in NAMES if not NAMES[name].is_field and ">>>" in _own_doc(NAMES[name].value)
    ),
)
def test_the_example_of_a_docstring(name: str) -> None:
    names = {each: getattr(celery_throttle, each) for each in celery_throttle.__all__}
    test = doctest.DocTestParser().get_doctest(_own_doc(NAMES[name].value), names, name, None, None)
    run_in_child(lambda: doctest.DebugRunner().run(test))


def test_the_rule_finds_names_of_all_kinds() -> None:
    assert {
        "celery_throttle.limiter.limiter.Limiter.acquire",
        "celery_throttle.limiter.handle.LimitHandle.pause",
        "celery_throttle.limits.limit.Limit.burst",
        "celery_throttle.observe.status.fan_outs.Progress",
        "celery_throttle.clients.httpx.ThrottledTransport",
        "celery_throttle.errors.Throttled",
        "celery_throttle.task_throttled",
    } <= {*NAMES}
    assert "celery_throttle.limiter.limiter.Limiter.run_plan" not in NAMES


def _paths(one: PublicName) -> Iterator[str]:
    """Yield the names by which a page may define a public name: of its module, or one above."""
    definer = one.value if one.owner is None else one.owner
    module = getattr(definer, "__module__", "")
    if not one.name.startswith(f"{module}."):  # a signal: an instance of Celery's class
        module = one.name.rpartition(".")[0]
    own = one.name.removeprefix(f"{module}.")
    while module:
        yield f"{module}.{own}"
        module = module.rpartition(".")[0]


def _without_constructor() -> set[str]:
    shown = public_names.classes_without_constructor()
    return {name for name in NAMES if {*_paths(NAMES[name])} & shown}


def _docs_of_class(cls: type) -> str:
    """Return the docstring of a class, and of its public base classes of this package."""
    return "\n".join(
        _own_doc(base) for base in cls.__mro__ if base.__module__.startswith("celery_throttle")
    )


def _arguments(value: Any) -> list[str]:
    try:
        parameters = inspect.signature(value).parameters.values()
    except (TypeError, ValueError):
        return []
    return [
        one.name
        for one in parameters
        if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
        and one.name not in ("self", "cls")
        and not one.name.startswith("_")
    ]


def _names(doc: str, argument: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(argument)}(?!\w)", doc) is not None


def test_dir_lists_what_the_reference_documents() -> None:
    page = read("reference/api/limiter.md").split("## LimitHandle")[0]
    documented = {*re.findall(r"automethod:: ([a-z]\w*)", page)}
    with Celery("shop", broker="memory://", set_as_current=False) as app:
        listed = {name for name in dir(Throttle(app, {})) if not name.startswith("_")}
    assert listed == documented
