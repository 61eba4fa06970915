"""The `model` node to a module and inputs for one forward: an architecture, a factory or a checkpoint."""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import inspect
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from kerncfg.documents.target import DEVICES, Target
from kerncfg.errors import ApplyError, ConfigError, Issue, KerncfgWarning, SourceError

__all__ = ["Loaded", "build", "example", "given"]

_FORMS = ("architecture", "factory", "pretrained")
# Keys that a config class takes without declaring them: older spellings and the choice of attention.
_ATTENTION = "config.attn_implementation"
_UNDECLARED = ("attn_implementation", "rope_scaling", "rope_theta")
# How far weights that start at a constant are moved from it, relative to it, or to 1 for zeros.
_SPREAD = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """A model in eval mode, and the keyword arguments of one forward, on the same device."""

    model: nn.Module
    inputs: dict[str, Any]


def build(node: Mapping[str, Any], target: Target) -> Loaded:
    """Build what the `model` node describes on the target's device.

    Weights and inputs are drawn from `seed` alone, and the caller's random state stays as it was. Norm
    weights and biases, which architectures start at one and zero, are drawn too: with constants, a kernel
    that leaves a weight out would look right. A factory's and a checkpoint's weights are taken as they are.

    Raises:
        ConfigError: The node names an architecture, key or factory that does not exist, or no inputs can be
        made. SourceError: The checkpoint or the factory's code could not be loaded, or the target's device or
        transformers is missing.
    """
    said = [form for form in _FORMS if node.get(form)]
    if len(said) != 1:
        found = " and ".join(said) or "none of them"
        raise _refused(f"found {found}, expected one of {', '.join(_FORMS)}", hint="keep one of the three")
    device = _device(target)
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.manual_seed(int(node.get("seed") or 0))
        make = {"architecture": _architecture, "factory": _factory, "pretrained": _pretrained}[said[0]]
        model, inputs = make(node)
        if inputs is None:
            inputs = _token_inputs(model, node)
    dtype = _dtype(node)
    return Loaded(
        model=model.to(device=device, dtype=dtype).eval(),
        inputs={name: _moved(value, device, dtype) for name, value in inputs.items()},
    )


def example(model: nn.Module, *, batch: int = 2, sequence: int = 16) -> dict[str, Any]:
    """Return keyword arguments for one forward of a model of tokens, always the same, on the model's device.

    Raises:
        ConfigError: The model does not say how many tokens it knows.
    """
    device = next((tensor.device for tensor in (*model.parameters(), *model.buffers())), torch.device("cpu"))
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.manual_seed(0)
        inputs = _token_inputs(model, {"architecture": type(model).__name__, "batch": batch, "sequence": sequence})
    return {name: _moved(value, device, None) for name, value in inputs.items()}


def _architecture(node: Mapping[str, Any]) -> tuple[nn.Module, None]:
    transformers = _transformers("model.architecture")
    name = str(node["architecture"])
    model_class = getattr(transformers, name, None)
    config_class = getattr(model_class, "config_class", None)
    if model_class is None or config_class is None:
        models = (known for known in dir(transformers) if "For" in known or known.endswith("Model"))
        close = _nearest(name, models)
        raise _refused(f"transformers {transformers.__version__} has no model class {name!r}", "architecture", close)
    settings = dict(node.get("config") or {})
    _check_keys(config_class, settings)
    _check_attention(settings)
    try:
        config = config_class(**settings)
        _ignore_kernels(config)
        model = model_class(config)
    except Exception as error:
        raise _refused(f"{name} cannot be built from it: {_sentence(error)}", "config") from error
    _vary_constants(model)
    return model, None


def _check_keys(config_class: type, settings: Mapping[str, Any]) -> None:
    """Refuse keys that the config class would store without using them, all at once."""
    renamed = getattr(config_class, "attribute_map", {})
    declared = inspect.signature(config_class).parameters if not dataclasses.is_dataclass(config_class) else ()
    fields = {field.name for field in dataclasses.fields(config_class)} if not declared else set(declared)
    known = {*fields, *renamed, *_UNDECLARED} - {"dtype", "torch_dtype", "kwargs", "self"}
    issues = []
    for key in settings:
        if key not in known:
            hint = "write model.dtype" if key in ("dtype", "torch_dtype") else _nearest(key, known)
            issues.append(_issue(f"{config_class.__name__} has no key {key!r}", f"config.{key}", hint))
    if issues:
        raise ConfigError(issues)


def _check_attention(settings: Mapping[str, Any]) -> None:
    """Refuse an attention that transformers would fetch from the Hub, without asking whom the user trusts."""
    said = settings.get("attn_implementation")
    for name in said.values() if isinstance(said, Mapping) else [said]:
        if isinstance(name, str) and "/" in name:
            hint = f"write attention.default={name}, which is planned, pinned and asks for trust"
            raise ConfigError([_issue(f"{name!r} is code of the Hub, which a model cannot choose", _ATTENTION, hint)])


def _vary_constants(model: nn.Module) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.numel() > 1 and bool((parameter == parameter.flatten()[0]).all()):
                noise = torch.randn_like(parameter) * _SPREAD
                parameter.add_(noise * torch.where(parameter == 0, torch.ones_like(parameter), parameter))


def _pretrained(node: Mapping[str, Any]) -> tuple[nn.Module, None]:
    transformers = _transformers("model.pretrained")
    place = str(node["pretrained"])
    if place.startswith((".", "/", "~")) or Path(place).is_dir():
        folder = Path(place).expanduser().absolute()
        if not (folder / "config.json").is_file():
            raise SourceError(f"model.pretrained: {folder} is no folder with a config.json")
        place = str(folder)
    try:
        # Code from the checkpoint's repository never runs: consent is given to kernels, not to models.
        config = transformers.AutoConfig.from_pretrained(place, trust_remote_code=False)
        _ignore_kernels(config)
        model: nn.Module = transformers.AutoModelForCausalLM.from_pretrained(
            place, config=config, trust_remote_code=False
        )
    except Exception as error:
        hint = "name a causal language model on the Hub (org/name) or a folder written by save_pretrained"
        raise SourceError(f"model.pretrained: {place} cannot be loaded: {_sentence(error)}", hint=hint) from error
    return model, None


def _ignore_kernels(config: Any) -> None:
    """Take kernels out of a model's own config, and of those of its parts: transformers would fetch and run them."""
    for part in (config, *(getattr(config, name, None) for name in getattr(config, "sub_configs", ()))):
        named = getattr(part, "_attn_implementation_internal", None)
        for text in sorted({text for text in (named.values() if isinstance(named, dict) else [named]) if text}):
            if "/" in str(text):
                found = f"attention {text!r} is ignored: it comes from model files"
                message = f"{found}, and only a local file or an override can grant trust"
                warnings.warn(message, KerncfgWarning, stacklevel=2)
                part._attn_implementation = None


def _factory(node: Mapping[str, Any]) -> tuple[nn.Module, dict[str, Any] | None]:
    text = str(node["factory"])
    function = _function(text)
    try:
        made = function()
    except (Exception, SystemExit) as error:
        raise SourceError(f"model.factory: {text} raised {type(error).__name__}: {_sentence(error)}") from error
    model, inputs = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
    if not isinstance(model, nn.Module):
        raise _refused(
            f"{text} returned {type(made).__name__}, expected a module or (module, inputs)",
            "factory",
            _RETURN,
        )
    return model, None if inputs is None else _named(model, inputs, text)


_GIVE = "pass inputs={name: value, …}, or inputs=(value, …) in the order of the model's forward"
_RETURN = "return (model, inputs), inputs being a dict of keyword arguments or a tuple of positional ones"


def _function(text: str) -> Callable[[], Any]:
    module_name, _, function_name = text.removeprefix("python:").partition(":")
    if not text.startswith("python:") or not module_name or not function_name.isidentifier():
        raise _refused(f"{text!r} names no function", "factory", "write python:package.module:function")
    try:
        with _working_directory():
            module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise SourceError(f"model.factory: importing {module_name} failed: {_sentence(error)}") from error
        hint = "modules are looked up where Python looks for them, and in the working directory"
        raise _refused(f"there is no module {error.name!r}", "factory", hint) from error
    except (Exception, SystemExit) as error:  # a script that reads the command line as it is imported ends the process
        failed = f"{type(error).__name__}: {_sentence(error)}"
        raise SourceError(f"model.factory: importing {module_name} failed: {failed}") from error
    function = getattr(module, function_name, None)
    if not callable(function):
        there = [name for name, value in vars(module).items() if _is_function_of(module_name, value)]
        close = _nearest(function_name, there) or (f"there are {', '.join(there)}" if there else None)
        raise _refused(f"{module_name} has no function {function_name!r}", "factory", close)
    return function  # type: ignore[no-any-return]


def _is_function_of(module: str, value: Any) -> bool:
    """Whether a module wrote this function itself, rather than imported it."""
    return inspect.isfunction(value) and value.__module__ == module


@contextmanager
def _working_directory() -> Iterator[None]:
    """Put the working directory first on `sys.path`, as `python -m` does."""
    here = str(Path.cwd())
    sys.path.insert(0, here)
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path.remove(here)


def _named(model: nn.Module, inputs: Any, text: str) -> dict[str, Any]:
    try:
        return _by_name(model, inputs if isinstance(inputs, (Mapping, tuple, list)) else (inputs,))
    except _Unnamed as error:
        raise _refused(f"the inputs of {text} do not fit the model's forward: {error}", "factory", _RETURN) from error


class _Unnamed(ValueError):
    """Inputs that cannot be the keyword arguments of one forward."""


def given(model: nn.Module, inputs: Any) -> dict[str, Any]:
    """Return inputs, as a dict of keyword arguments or a tuple of positional ones, by name.

    Raises:
        ApplyError: They are something else, or do not fit the model's forward.
    """
    try:
        return _by_name(model, inputs)
    except _Unnamed as error:
        raise ApplyError(f"the inputs do not fit the model's forward: {error}", hint=_GIVE) from error


def _by_name(model: nn.Module, inputs: Any) -> dict[str, Any]:
    """Return inputs by name; a `ValueError` says why they have none."""
    if isinstance(inputs, Mapping):
        if odd := [key for key in inputs if not isinstance(key, str)]:
            raise _Unnamed(f"found the key {odd[0]!r}, expected names of arguments")
        return dict(inputs)
    if not isinstance(inputs, (tuple, list)):
        raise _Unnamed(f"found {_kind(inputs)}, expected a dict of keyword arguments or a tuple of positional ones")
    signature = inspect.signature(model.forward)
    kinds = {parameter.kind for parameter in signature.parameters.values()}
    if kinds & {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.POSITIONAL_ONLY}:
        raise _Unnamed(f"it names no arguments, found a {type(inputs).__name__}, expected a dict of keyword arguments")
    try:
        return dict(signature.bind(*inputs).arguments)
    except TypeError as error:
        raise _Unnamed(f"{error}, found {len(inputs)} for forward{signature}") from error


def _kind(value: Any) -> str:
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


def _token_inputs(model: nn.Module, node: Mapping[str, Any]) -> dict[str, Any]:
    """Draw token ids from the model's own vocabulary; nothing is padded."""
    config = getattr(model, "config", None)
    text = config.get_text_config() if config is not None and hasattr(config, "get_text_config") else config
    vocabulary = getattr(text, "vocab_size", None)
    if not isinstance(vocabulary, int):
        form = "factory" if node.get("factory") else "architecture"
        hint = _RETURN if form == "factory" else "write a model.factory that returns (model, inputs)"
        raise _refused("no inputs can be made: the model has no config.vocab_size", form, hint)
    batch, sequence = int(node.get("batch") or 1), int(node.get("sequence") or 1)
    longest = getattr(text, "max_position_embeddings", None)
    if isinstance(longest, int) and sequence > longest:
        raise _refused(f"{sequence} is more than the model's max_position_embeddings, {longest}", "sequence")
    ids = torch.randint(0, vocabulary, (batch, sequence))
    inputs: dict[str, Any] = {"input_ids": ids}
    if "attention_mask" in inspect.signature(model.forward).parameters:
        inputs["attention_mask"] = torch.ones_like(ids)
    if getattr(text, "is_encoder_decoder", False):
        inputs["decoder_input_ids"] = torch.randint(0, vocabulary, (batch, sequence))
    return inputs


def _device(target: Target) -> torch.device:
    try:
        device = torch.device(DEVICES[target.device].torch)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        message = f"target: this machine cannot hold a model on {target.device}: {_sentence(error)}"
        raise SourceError(message, hint="write target=auto") from error
    return device


def _dtype(node: Mapping[str, Any]) -> torch.dtype | None:
    name = node.get("dtype")
    if name is None:
        return None
    dtype = getattr(torch, str(name), None)
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise _refused(f"{name!r} is no floating dtype", "dtype", "write float32, bfloat16, float16 or float64")
    return dtype


def _moved(value: Any, device: torch.device, dtype: torch.dtype | None) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to(device=device, dtype=dtype if value.is_floating_point() else None)
    if isinstance(value, Mapping):
        return {key: _moved(item, device, dtype) for key, item in value.items()}
    return type(value)(_moved(item, device, dtype) for item in value) if type(value) in (list, tuple) else value


def _transformers(path: str) -> Any:
    try:
        import transformers
    except ImportError as error:
        hint = "pip install 'kerncfg[transformers]'"
        raise SourceError(f"{path} needs transformers: {_sentence(error)}", hint=hint) from error
    return transformers


def _sentence(error: BaseException) -> str:
    """Return the first line of an exception's text that says something."""
    lines = (line.strip() for line in str(error).splitlines())
    return next((line for line in lines if line), type(error).__name__)


def _nearest(name: str, known: Iterable[str]) -> str | None:
    close = difflib.get_close_matches(name, sorted(known), n=1)
    return f"did you mean {close[0]}?" if close else None


def _issue(message: str, key: str | None = None, hint: str | None = None) -> Issue:
    return Issue(message=message, path=f"model.{key}" if key else "model", hint=hint)


def _refused(message: str, key: str | None = None, hint: str | None = None) -> ConfigError:
    return ConfigError([_issue(message, key, hint)])
