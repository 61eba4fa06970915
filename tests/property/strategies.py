"""Generated documents: every form of the language, over few names and kernels so that rows meet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hypothesis import settings
from hypothesis import strategies as st

from kerncfg.compiler.policy import Request
from kerncfg.documents.lock import Build, Lock, Pin
from kerncfg.documents.target import DEVICES, Mode
from kerncfg.documents.variant import Variant
from tests.builders import document, target

if TYPE_CHECKING:
    from kerncfg.documents.config import Config, KernelRef, Trust
    from kerncfg.documents.target import Target

law = settings(deadline=None, max_examples=60)

NAMES = ("L", "M", "N")
BUILDS = (None, "torch-universal", "torch-cuda", "torch-cpu", "torch213-cxx11-cu126-x86_64-linux")

words = st.sampled_from(["a", "b", "c1", "d_2"])
versions = st.builds("{}.{}".format, st.integers(0, 12), st.integers(0, 3))


@st.composite
def ranges(draw: st.DrawFn) -> str:
    """A version range, in any spelling."""
    operators = st.sampled_from([">=", "<=", "==", "!=", "~=", "<", ">"])
    clauses = st.lists(st.builds("{}{}{}".format, operators, st.sampled_from(["", " "]), versions), min_size=1)
    return ",".join(draw(clauses))


commits = st.text("0123456789abcdef", min_size=40, max_size=40)
revisions = st.sampled_from(["v1", "v2.1.0", "main", "feature/x", "61e9540"]) | commits
hub_kernels = st.builds(
    "{}/{}{}:{}".format,
    words,
    words,
    st.just("") | st.builds("@{}".format, revisions | ranges()),
    words,
)
local_kernels = st.builds("{}{}:{}".format, st.sampled_from(["/", "/x/", "C:\\", "python:", "python:p."]), words, words)
kernels = hub_kernels | local_kernels | st.builds("builtin:{}".format, words)
references = kernels | st.sampled_from(["original", "inherited"])

scalars = st.none() | st.booleans() | st.integers(-2, 2) | words
whens = st.dictionaries(words, scalars | st.lists(scalars, min_size=1), max_size=2).map(
    lambda said: {"config": said} if said else said
)
dtypes = st.sampled_from(["float32", "bfloat16", "float16"])
conditions = st.fixed_dictionaries(
    {},
    optional={
        "capability": ranges(),
        "torch": ranges(),
        "dtype": dtypes | st.lists(dtypes, min_size=1, unique=True),
        "when": whens,
        "trust_remote_code": st.booleans(),
    },
)


@st.composite
def maps(draw: st.DrawFn) -> dict[str, Any]:
    """A candidate as a map, with its version within or beside."""
    beside = draw(st.sampled_from(["", "version", "revision"]))
    said: dict[str, Any] = {"kernel": draw(kernels | st.sampled_from([None, "", "original"])), **draw(conditions)}
    if beside:
        said["kernel"] = f"{draw(words)}/{draw(words)}:{draw(words)}"
        said[beside] = draw(revisions if beside == "revision" else st.integers(0, 9) | ranges())
    return said


candidates = kernels | maps() | st.sampled_from([None, "", "original", "inherited"])
values = candidates | st.lists(candidates, min_size=1, max_size=3)
modes = st.dictionaries(st.sampled_from([mode.value for mode in Mode]), values, min_size=1)
devices = st.sampled_from(["any", "metal", *(name for name in DEVICES if name != "mps")])

row_maps = st.builds(
    lambda said, rest: {**said, **rest},
    st.dictionaries(devices, values | modes, max_size=3),
    st.builds(
        lambda keys, common: {**keys, **common},
        st.fixed_dictionaries(
            {},
            optional={
                "match": st.fixed_dictionaries({"class": words}, optional={"path": words}),
                "exclude": st.lists(words, max_size=2),
                "fallback": st.sampled_from(["original", "error"]),
                "inherit_mapping": st.booleans(),
            },
        ),
        conditions,
    ),
)
rows = values | row_maps
mappings = st.builds(
    lambda said, flag: {**said, **flag},
    st.dictionaries(st.sampled_from(NAMES), rows),
    st.fixed_dictionaries({}, optional={"inherit_mapping": st.booleans()}),
)
trusts = st.fixed_dictionaries(
    {
        "publishers": st.dictionaries(words, st.booleans()),
        "repositories": st.dictionaries(st.builds("{}/{}".format, words, words), st.booleans()),
        "allow_all_kernels": st.booleans(),
    }
)
policies = st.fixed_dictionaries(
    {
        "fallback": st.sampled_from(["original", "error"]),
        "strict": st.booleans(),
        "require_pin": st.booleans(),
    }
)
parts = st.sampled_from(["a.norm", "a.mlp", "a.*"])
frameworks = st.sampled_from(["sdpa", "eager", "flash_attention_2", "flash_attention_3", "flash_attention_4"])
attentions = frameworks | kernels | st.lists(frameworks | kernels | st.none(), min_size=1, max_size=3)
attention_rows = attentions | st.builds(
    lambda devices, rest: {**devices, **rest},
    st.dictionaries(devices, attentions | st.dictionaries(st.just("training"), attentions, min_size=1), min_size=1),
    st.fixed_dictionaries(
        {},
        optional={
            "path": words,
            "mask": st.sampled_from(["auto", "sdpa"]),
            "torch": ranges(),
            "fallback": st.sampled_from(["original", "error"]),
        },
    ),
)
fusion_rows = st.none() | st.builds(
    lambda members, devices: {"members": members, **devices},
    st.lists(st.tuples(words, parts).map(list), min_size=1, max_size=3, unique_by=lambda pair: pair[1]),
    st.dictionaries(devices, kernels | st.lists(kernels | st.none(), min_size=1, max_size=2), min_size=1),
)
documents = st.builds(
    document,
    mappings,
    mappings,
    enabled=st.booleans(),
    trust=trusts,
    policy=policies,
    fusions=st.dictionaries(st.sampled_from(NAMES), fusion_rows, max_size=2),
    attention=st.dictionaries(st.sampled_from(NAMES), attention_rows, max_size=2),
)

# Rows of one's own in which nothing is switched off: kernels for some modes of some devices.
kernel_lists = st.lists(kernels, min_size=1, max_size=3)
kernel_rows = st.dictionaries(
    st.sampled_from(["any", "cuda", "cpu"]),
    st.dictionaries(st.sampled_from([mode.value for mode in Mode]), kernel_lists, min_size=1),
    min_size=1,
)


@st.composite
def targets(draw: st.DrawFn) -> Target:
    """A target of any device."""
    return target(
        draw(st.sampled_from(list(DEVICES))),
        capability=draw(st.none() | versions),
        torch=draw(st.none() | versions),
        backend_version=draw(st.none() | versions),
        packages=draw(st.dictionaries(words, versions)),
        free_threaded=draw(st.booleans()),
    )


@st.composite
def locks(draw: st.DrawFn, config: Config) -> Lock:
    """An answer for every reference of a config: builds, or a reason."""
    refs = {candidate.ref for row in config.rows.values() for candidate in row.candidates()}
    return Lock(pins={ref: draw(pins(ref)) for ref in sorted(refs, key=str) if ref.scheme != "original"})


@st.composite
def pins(draw: st.DrawFn, ref: KernelRef) -> Pin:
    """An answer for one reference."""
    names = draw(st.lists(st.sampled_from(BUILDS), unique=True))
    if not names:
        return Pin(ref=ref, reason="not there")
    builds = (Build(variant=Variant.parse(name) if name else None, digest=draw(words)) for name in names)
    return Pin.of(ref, *builds, commit=draw(st.none() | commits))


@st.composite
def requests(draw: st.DrawFn, trust: Trust) -> Request:
    """A request for any target."""
    return Request(target=draw(targets()), trust=trust, require_pin=draw(st.booleans()), hub=draw(st.booleans()))
