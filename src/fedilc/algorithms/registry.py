"""Registries of parts by name, with the options that each part declares. This file needs no torch.

A part is a class: an aggregation, a penalty or an optimiser. The arguments of its constructor are its
options; their annotations give types and bounds, as in `min_side: Annotated[int, Field(ge=1)] = 1`, and
no other place declares them. A part keeps each argument as an attribute of the same name, from which
run folders and manifests take it.

Built-in parts are named in `parts.py` and imported when they are first used. Parts of other packages are
registered when their entry point in the group `fedilc.plugins` is loaded: a module that calls `register`.
"""

from __future__ import annotations

import importlib
import inspect
import warnings
from collections.abc import Callable, Mapping
from functools import cache, wraps
from importlib.metadata import entry_points
from typing import Any, Generic, TypeVar, cast, get_type_hints

from pydantic import BaseModel, ConfigDict, ValidationError, create_model
from pydantic.fields import FieldInfo

from fedilc.errors import ConfigError, FedILCWarning, WrongTypeError, nearest
from fedilc.section import first_mistake

PLUGINS = "fedilc.plugins"

Entry = TypeVar("Entry")
Part = TypeVar("Part")
Maker = Callable[..., Part]
Constructor = TypeVar("Constructor", bound=Callable[..., None])
_CONFIG = ConfigDict(
    extra="forbid", allow_inf_nan=False, arbitrary_types_allowed=True, protected_namespaces=()
)


class Registry(Generic[Entry]):
    """Entries of one kind by name.

    Args:
        kind: the word for an entry in errors.
        entries: the built-in entries.
        plural: the plural of `kind`, if it is not `kind` with an s.

    >>> colours = Registry[str]("colour", {"red": "a colour"})
    >>> colours.register("blue", "another colour")
    >>> colours.names(), colours.get("blue")
    (('red', 'blue'), 'another colour')
    """

    def __init__(self, kind: str, entries: Mapping[str, Entry] | None = None, *, plural: str = "") -> None:
        self.kind = kind
        self.plural = plural or f"{kind}s"
        self._entries = dict(entries or {})

    def register(self, name: str, entry: Entry) -> None:
        """Add an entry under a new name; in a run over machines, every silo must have it installed too."""
        if name in self._names():
            article = "an" if self.kind[0] in "aeiou" else "a"
            raise ConfigError(f"there is already {article} {self.kind} {name!r}; choose another name")
        self._entries[name] = entry

    def unregister(self, name: str) -> None:
        """Remove an entry that was registered."""
        self._entries.pop(name, None)

    def _names(self) -> tuple[str, ...]:
        return tuple(self._entries)

    def names(self) -> tuple[str, ...]:
        """Return the names of all entries, built-in and registered."""
        load_plugins()
        return self._names()

    def get(self, name: object) -> Entry:
        """Return the entry of a name; plug-ins are loaded only if the name is not known yet."""
        if name not in self._names() and name not in self.names():
            raise ConfigError(f"{self.kind} {str(name)!r} is unknown{nearest(str(name), self.names())}")
        return self._entries[str(name)]

    def summary(self, name: str) -> str:
        """Return one line about an entry: its `summary` or the first line of its docstring."""
        entry = self.get(name)
        return getattr(entry, "summary", "") or first_line(entry)

    def fields(self, _name: str) -> Mapping[str, FieldInfo]:
        """Return the options that an entry takes."""
        return {}


class PartRegistry(Registry[Maker[Part]]):
    """The parts of one kind: classes by name, with the options that their constructors declare.

    Args:
        kind: the word for such a part in errors.
        base: place of the base class, as "module:Class".
        built_in: for each built-in part its name, its place ("module:Class") and a line for `fedilc list`.
        plural: the plural of `kind`, if it is not `kind` with an s.
        reserved: arguments of constructors that are not options.

    >>> numbers = PartRegistry[complex]("number", "builtins:complex", {})
    >>> numbers.register("unit", complex)
    >>> numbers.names()
    ('unit',)
    """

    def __init__(
        self,
        kind: str,
        base: str,
        built_in: Mapping[str, tuple[str, str]],
        *,
        plural: str = "",
        reserved: tuple[str, ...] = (),
    ) -> None:
        super().__init__(kind, plural=plural)
        self.reserved = reserved
        self._base = base
        self._built_in = dict(built_in)
        self._models: dict[str, type[BaseModel]] = {}

    def register(self, name: str, entry: Maker[Part]) -> None:
        """Add a part under a new name; in a run over machines, every silo must have it installed too."""
        if not callable(entry):
            raise WrongTypeError(
                f"register() was given {type(entry).__name__} as {name!r}; give the class of the {self.kind}"
            )
        super().register(name, entry)

    def unregister(self, name: str) -> None:
        """Remove a part that was registered."""
        super().unregister(name)
        self._models.pop(name, None)

    def _names(self) -> tuple[str, ...]:
        return (*self._built_in, *(name for name in self._entries if name not in self._built_in))

    def get(self, name: object) -> Maker[Part]:
        """Return the class of a name; a built-in one is imported when it is first used."""
        if name in self._built_in and name not in self._entries:
            try:
                self._entries[str(name)] = imported(self._built_in[str(name)][0])
            except AttributeError as error:
                raise ConfigError(f"{self.kind} {name!r} needs a newer version of torch") from error
        return super().get(name)

    def build(self, name: str | Part, **options: Any) -> Part:
        """Return the part of a name with these options, or the given object; raise for unknown options."""
        found = self.checked(name, options)
        return self.get(name)(**found) if isinstance(name, str) else name

    def checked(self, choice: str | Part, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return options with their declared types; raise if the part does not take one of them."""
        known = self.options(choice)
        for key in options:
            if key not in known:
                name = repr(choice) if isinstance(choice, str) else type(choice).__name__
                takes = f"takes {', '.join(known)}" if known else "takes none"
                raise ConfigError(f"{self.kind} {name} has no option {key!r}; it {takes}")
        if not isinstance(choice, str):
            return {}
        return _valid(self.model(choice), options)

    def summary(self, name: str) -> str:
        """Return one line about a part, without importing a built-in part."""
        return self._built_in[name][1] if name in self._built_in else first_line(self.get(name))

    def fields(self, name: str) -> Mapping[str, FieldInfo]:
        """Return the options of a part, with their defaults."""
        return self.model(name).model_fields

    def model(self, name: str) -> type[BaseModel]:
        """Return the options of a part as a pydantic model, which validates them."""
        part = self.get(name)
        if name not in self._models:
            self._models[name] = _option_model(part, self.reserved)
        return self._models[name]

    def options(self, choice: str | Part | None) -> tuple[str, ...]:
        """Return the names of the options of a part; a part given as an object takes none."""
        if isinstance(choice, imported(self._base)):
            return ()
        return tuple(self.model(str(choice)).model_fields)

    def declared(self, name: str) -> tuple[str, ...]:
        """Return the names of the options of a part; none if this version of torch lacks the part."""
        try:
            return self.options(name)
        except ConfigError:
            return ()

    def accepts(self, name: str, option: str, value: Any) -> bool:
        """Return whether a part declares an option; raise if it does not accept the value."""
        if option not in self.declared(name):
            return False
        check_value(option, self.model(name).model_fields[option], value)
        return True

    def name_of(self, choice: str | Part) -> str | None:
        """Return the name of a part given by name or as an object; None if its class is not registered."""
        if isinstance(choice, str):
            return choice
        return next((name for name in self.names() if self.get(name) is type(choice)), None)

    def is_built_in(self, choice: str | Part) -> bool:
        """Return whether a part, by name or as an object, is one of this package's own."""
        return self.name_of(choice) in self._built_in

    def describe(self, part: Part) -> dict[str, Any] | None:
        """Return the name of a part and all its options, or None if its class is not registered.

        `build(**description)` returns an equal part.
        """
        name = self.name_of(part)
        if name is None:
            return None
        return {"name": name} | {key: self._kept(part, name, key) for key in self.options(name)}

    def _kept(self, part: Part, name: str, option: str) -> Any:
        if not hasattr(part, option):
            raise ConfigError(
                f"{self.kind} {name!r} does not keep its option {option!r}; set self.{option} in its "
                "constructor, so that it can be recorded and sent"
            )
        return getattr(part, option)


def checks_options(constructor: Constructor) -> Constructor:
    """Make the constructor of a part check its arguments against their declared types and bounds."""
    signature = inspect.signature(constructor)

    @cache
    def model() -> type[BaseModel]:
        return _option_model(constructor, ("self",))

    @wraps(constructor)
    def checked(self: Any, *given: Any, **named: Any) -> None:
        arguments = signature.bind(self, *given, **named).arguments
        del arguments["self"]
        constructor(self, **_valid(model(), arguments))

    return cast(Constructor, checked)


def check_value(option: str, field: FieldInfo, value: Any) -> None:
    """Raise if an option does not accept a value; None stands for its default and is always accepted."""
    if value is not None:
        fields: dict[str, Any] = {option: (field.annotation, field)}
        _valid(create_model("PartOption", __config__=_CONFIG, **fields), {option: value})


def _option_model(part: Callable[..., Any], reserved: tuple[str, ...]) -> type[BaseModel]:
    """Return the arguments of a constructor as a model; one without an annotation takes any value."""
    made: Any = part
    try:
        hints = get_type_hints(made.__init__ if isinstance(part, type) else made, include_extras=True)
    except NameError:  # an annotation that is imported for type checkers only
        hints = {}
    fields: dict[str, Any] = {}
    for name, parameter in inspect.signature(part).parameters.items():
        if name in reserved or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if name == "name":
            raise ConfigError(f"{part} has an option 'name', which stands for the part itself; rename it")
        required = parameter.default is parameter.empty
        fields[name] = (hints.get(name, Any), ... if required else parameter.default)
    return create_model("PartOptions", __config__=_CONFIG, **fields)


def _valid(model: type[BaseModel], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options with the types that a model declares; raise one sentence about the first mistake."""
    try:
        found = model.model_validate(dict(options))
    except ValidationError as error:
        raise ConfigError(first_mistake(error, model.model_fields)) from error
    return {key: getattr(found, key) for key in options}


def imported(place: str) -> Any:
    """Return the object at a place, "module:Class" or "module:function"."""
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)


def first_line(thing: object) -> str:
    """Return the first line of a docstring, without its full stop.

    >>> first_line(first_line)
    'Return the first line of a docstring, without its full stop'
    """
    lines = (inspect.getdoc(thing) or "").splitlines()
    return lines[0].rstrip(".") if lines else ""


@cache
def load_plugins() -> None:
    """Import the modules that installed packages name in the entry-point group `fedilc.plugins`, once.

    Only packages of this installation are loaded; no message from a network can name one.
    """
    for plugin in entry_points(group=PLUGINS):
        try:
            plugin.load()
        except Exception as error:  # a package of someone else may raise anything
            warnings.warn(
                f"the plug-in {plugin.name!r} ({plugin.value}) cannot be loaded: "
                f"{type(error).__name__}: {error}; update or uninstall its package",
                FedILCWarning,
                stacklevel=2,
            )
