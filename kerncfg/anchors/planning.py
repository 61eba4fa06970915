"""Messages about plan files, the reasons that stand in a plan, and what any message may hold."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["GENERAL", "PLAN_FILES", "REASONS"]

PLAN_FILES: Mapping[str, tuple[str, ...]] = {
    "no-plan": (
        "…: is a lock, not a plan",
        "…: is a lock of the `kernels` library, not a plan",
        "…: holds a …, not a plan",
        "…: is no plan, it has no …",
        "…: not JSON (…)",
    ),
    "plan-format": ("the plan has format …, this kerncfg reads …",),
    "plan-edited": (
        "the plan's content has digest …, the file says …",
        "the files of a build have digest …, the plan says …",
        "the plan has commit … and build …, needed 40 hexadecimal digits and the name of a folder",
    ),
    "another-machine": ("the plan does not fit this machine: …",),
}

REASONS: Mapping[str, tuple[str, ...]] = {
    "untrusted-publisher": (
        "publisher … is not trusted: set …",
        "for a plan from a file say --trust …",
    ),
    "proposed-code": (
        "… is what anybody may propose there, needed consent to it alone: …",
        "commit … is on no branch and no tag of …, where anybody may propose one, needed …",
        "…: so nobody says that commit … was released, needed that or --trust …",
        "nothing in the cache says that commit … of … was released (HF_HUB_OFFLINE is set), needed that or --trust …",
    ),
    "why-code-may-run": (
        "trust.publishers.…",
        "trust.repositories.…",
        "trust.allow_all_kernels",
        "trust_remote_code of its row",
        "… was named by you",
    ),
    "unnamed-code": ("… was not named by you: …",),
    "ignored-consent": ("… is ignored: it comes from …, and only a local file or an override can grant trust",),
    "hub-off": ("Hub kernels are switched off by USE_HUB_KERNELS, needed 1, ON, YES or TRUE",),
    "not-pinned": ("policy.require_pin needs a commit of 40 digits, found …",),
    "no-build-fits": (
        "no build fits: …",
        "built for …, the target is …",
        "built for … …, the target has …",
        "built with the … ABI, the target's torch uses …",
        "built with the … ABI of Linux, the target is …",
        "compiled builds need Python … if free-threaded, the target has …",
        "needs macOS … or newer, the target has …",
        "needs torch … or newer, the target has …",
        "needs … …, the target's version is not known",
        "needs kernels … or newer, kerncfg reads what … does",
        "needs the Python package …, a build for … may need …",
        "needs …, not installed here: pip install …",
    ),
    "build-metadata": (
        "metadata.json: … is …, expected …",
        "metadata.json is …, expected …",
        "metadata.json is no JSON, as was expected: …",
        "metadata.json: kernel-depends: …, needed organisation/name with a version",
        "found no metadata.json, needed for what the build requires",
    ),
    "compiled-attention": (
        "the compiled package … is for cuda, the target is …",
        "needs the compiled package …, the target has none",
        "… is beta upstream",
    ),
    "condition-on-the-target": ("needs … …, the target has …",),
    "no-build-there": (
        "no build in …: looked for …",
        "no folder …, needed a kernel in the layout of the Hub",
        "… is a file; name its folder, …",
    ),
    "no-module": ("no module … on the search path, needed for the kernel",),
    "no-source": (
        "no source for … kernels is installed, needed an entry point in kerncfg.sources",
        "the source for … kernels, …, cannot be used: …",
    ),
    "switched-off": ("kernels are switched off: enabled is false, needed true",),
    "off": ("off, as the row says", "off, as inherited"),
    "replaced": (
        "the original stands before it…",
        "replaced by your …",
        "the row takes nothing inherited",
        "…: a map takes the place of …, said at …",
    ),
}

# What other messages may hold, so it is asked last.
GENERAL: Mapping[str, tuple[str, ...]] = {
    "fallback": (
        "fallback: the original where no kernel is left",
        "no row for …",
        "the row names no kernel for … on …",
        "the plan has no kernel for …",
    ),
    "no-kernel-left": (
        "no kernel for …: …",
        "no kernel of … is left for …: …",
        "no kernel of … is left: …",
        "the attention of … can be none of what is chosen: …",
    ),
    "chosen": ("chosen for …", "inherited for …", "…, by match …", "…; passed over: …"),
    "cannot-be-composed": ("the configuration cannot be composed: …",),
    "no-such-node": ("there is no …",),
    "cannot-be-read": ("cannot be read: …",),
    "another-value": ("found …, expected …", "… is no …"),
}
