"""Messages about the Hub: what it answers, what is fetched from it, and the lock that says what was found there."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["DEPENDENCIES", "HUB", "LOCKS"]

LOCKS: Mapping[str, tuple[str, ...]] = {
    "lock": (
        "the lock does not hold it: `kerncfg lock` asks for what it lacks",
        "there is no …, needed the lock to check",
    ),
    "lock-format": ("the lock has format …, this kerncfg reads …",),
    "lock-edited": (
        "the files of build … have digest …, the lock says …",
        "build … is none, needed a name such as torch-cuda",
    ),
    "another-lock": (
        "is a plan, not a lock",
        "no entry of a kernels.lock: …",
        "found …, needed a map with `schema` and `pins`",
    ),
    "nothing-to-upgrade": (
        "… is neither a row with Hub kernels nor a repository",
        "… stays as it is: …",
        "--check writes nothing, and --upgrade … is to be written",
    ),
}

HUB: Mapping[str, tuple[str, ...]] = {
    "offline": (
        "HF_HUB_OFFLINE is set, and … is not in the cache, …; needed …",
        "… is broken in the cache: …, and HF_HUB_OFFLINE is set",
        "huggingface_hub was offline when it was imported and asks nothing, needed …",
    ),
    "last-resolved": ("as last resolved, for …",),
    "address": ("HF_ENDPOINT …, needed an address such as …",),
    "no-answer": ("the Hub at … gave no answer about …, needed …",),
    "another-type": ("there is a … of that name, and kernels are in repositories of type kernel",),
    "no-such-repository": ("there is no … repository … at …, needed …",),
    "no-such-revision": ("… has no such revision…, needed …",),
    "no-such-file": ("… has no such file…, needed …",),
    "token": (
        "the token that was sent was rejected, needed …",
        "HF_TOKEN holds a blank or a character beyond ASCII, needed one word as the Hub gave it",
    ),
    "private-repository": ("… is private or does not exist, …; needed …",),
    "gated-repository": ("… is gated, …; needed …",),
    "forbidden": ("access to … is forbidden, …; needed …",),
    "too-many-requests": ("too many requests, needed …",),
    "hub-failed": ("the Hub at … failed, needed …",),
    "strange-answer": (
        "the Hub named … for …, needed a commit of 40 digits",
        "the next page of … is said to be at …, needed …",
        "the branches of … came as …, needed names with commits",
        "the commits of … came without …, needed the id of each",
        "the files of … came without …, needed path, size and oid of each",
        "answered …, needed the JSON of a Hub",
    ),
    "redirect": (
        "… moved to …, and …",
        "… leads to …, needed organisation/name",
        "… is said to be at …, needed …",
    ),
    "cache": ("… of … cannot be kept in …: …",),
    "file-outside": ("… has a file …, whose name leads out of its folder, needed a plain path",),
    "strange-file": ("… holds …, which commit … has not",),
    "without-files": ("the plan has no files of build …, needed to load it", "build … has no …, needed to import it"),
    "broken-file": (
        "… came broken from the Hub, twice: …",
        "found … bytes, needed …",
        "found nothing, needed … bytes",
        "found … …, needed …",
    ),
    "no-such-version": ("… has …, needed …",),
}

# What another kernel lacks stands behind these words, so they are asked last.
DEPENDENCIES: Mapping[str, tuple[str, ...]] = {
    "dependencies": (
        "it imports itself, by way of …, needed kernels without such a circle",
        "it imports …: …",
        "… is no dependency of the kernel that is being imported; it declares …",
    ),
}
