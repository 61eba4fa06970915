"""Messages about what goes to the Hub and what comes from it, kernels aside."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["SHARING"]

SHARING: Mapping[str, tuple[str, ...]] = {
    "consent": ("… would run code of …, and a fetched file is no consent to that",),
    "what-to-push": (
        "push needs a run's folder or an experiment, and a repository; found …",
        "… names more than a repository",
        "… is the folder of a run, which has its overrides",
        "the run in … made no plan, so there is nothing to share",
        "… cannot name an experiment, expected letters, digits, - and _",
        "… is a packaged experiment, which would be found in the place of yours",
    ),
    "nothing-was-sent": (
        "nothing was sent: nobody said yes",
        "nothing was sent: you said no",
        "nothing was sent to …: …",
    ),
    "not-for-others": (
        "… would hold …, which is not for others",
        "the plan runs …, which others do not have",
        "the experiment would not say the same as what was run, in …",
    ),
    "there-already": ("… has … already, with other content",),
}
