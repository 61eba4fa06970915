"""Messages about the Hub: what it answers, what is fetched from it, and the lock that says what was found there."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["DEPENDENCIES", "HUB", "LOCKS"]

LOCKS: Mapping[str, tuple[str, ...]] = {
    "lock": ("the lock does not hold it: `kerncfg lock` asks for what it lacks",),
    "lock-format": ("the lock has format …, this kerncfg reads …",),
    "another-lock": ("no entry of a kernels.lock: …",),
    "nothing-to-upgrade": ("… is neither a row with Hub kernels nor a repository",),
}

HUB: Mapping[str, tuple[str, ...]] = {
    "offline": (
        "HF_HUB_OFFLINE is set, and … is not in the cache, …",
        "… is broken in the cache: …, and HF_HUB_OFFLINE is set",
    ),
    "last-resolved": ("as last resolved, for …",),
    "no-answer": ("the Hub at … gave no answer about …",),
    "another-type": ("there is a … of that name, and kernels are in repositories of type kernel",),
    "no-such-repository": ("there is no kernel repository …",),
    "no-such-revision": ("… has no such revision…",),
    "no-such-file": ("… has no such file…, needed …",),
    "private-repository": ("… is private or does not exist, …",),
    "gated-repository": ("… is gated, …",),
    "forbidden": ("access to … is forbidden, …",),
    "too-many-requests": ("too many requests, needed …",),
    "hub-failed": ("the Hub at … failed, needed …",),
    "strange-answer": (
        "the Hub named … for …, needed a commit of 40 digits",
        "the next page of … is said to be at …",
    ),
    "redirect": (
        "… moved to …, and …",
        "… leads to …, needed organisation/name",
        "… is said to be at …",
    ),
    "cache": ("… of … cannot be kept in …: …", "… is broken and cannot be removed: …"),
    "file-outside": ("… has a file …, whose name leads out of its folder, needed a plain path",),
    "strange-file": ("… holds …, which the build of commit …",),
    "without-files": ("the plan has no files of build …, needed to load it", "build … has no …, needed to import it"),
    "broken-file": (
        "… of … at … is broken, fetched anew: …",
        "found … bytes, needed …",
        "found nothing, needed … bytes",
        "found … …, needed …",
    ),
    "no-such-version": ("… has …, needed …",),
}

# What another kernel lacks stands behind these words, so they are asked last.
DEPENDENCIES: Mapping[str, tuple[str, ...]] = {
    "dependencies": (
        "it imports itself, by way of …",
        "it imports …: …",
        "… is no dependency of the kernel that is being imported; it declares …",
    ),
}
