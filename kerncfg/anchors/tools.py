"""Messages about what stands around a plan: files of other tools, models to run, and evidence."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["EVIDENCE", "FROM_OTHER_TOOLS", "MODELS", "RUNS"]

FROM_OTHER_TOOLS: Mapping[str, tuple[str, ...]] = {
    "no-equivalent": ("… has no equivalent", "…: a KernelConfig cannot say it"),
    "not-written-out": ("… is not written out: …",),
    "kernel-mappings": (
        "a kernel mapping is a map from names to kernels, found …",
        "a kernel is a text or a pair of text and metadata, found …",
        "the first of a pair is the kernel's text, found …",
        "a … holds its commit in a lock file",
        "… is neither a name nor pairs of class name and path",
        "… is no mode",
    ),
    "what-can-be-imported": (
        "import needs a file",
        "is no text",
        "holds none of …",
        "not Python: …",
        "sets up no kernels",
        "sets up kernels in … places: lines …",
        "… is said in both … and …",
    ),
    "flags-and-pins": (
        "… is no flag of Liger's",
        "is no map of flags",
        "entry … names no repository and commit",
        "holds an empty list, expected an entry for each repository",
        "… is no repository with a folder",
    ),
    "every-publisher": ("allow_all_kernels=True lets the code of every publisher run",),
    "a-training": (
        "the plan is not saved: there is no folder …",
        "use_liger_kernel and KernelsCallback both swap the layers of one model",
        "… was trained with plan …, this training has …",
    ),
}

MODELS: Mapping[str, tuple[str, ...]] = {
    "architecture": (
        "transformers … has no model class …",
        "… cannot be built from it: …",
        "… has no key …",
        "… is no floating dtype",
        "… is code of the Hub, which a model cannot choose",
    ),
    "factory": (
        "model.factory: …",
        "… names no function",
        "… has no function …",
        "there is no module …",
        "… returned …, expected a module or (module, inputs)",
        "the inputs of … do not fit the model's forward: …",
    ),
    "pretrained": ("model.pretrained: …",),
    "inputs": (
        "no inputs can be made: the model has no config.vocab_size",
        "… is more than the model's max_position_embeddings, …",
        "the model's own forward raised …",
        "the inputs do not fit the model's forward: …",
    ),
    "transformers": ("… needs transformers: …",),
    "device": ("this machine cannot hold a model on …: …", "target.device: … is no device", "… is no version"),
}

EVIDENCE: Mapping[str, tuple[str, ...]] = {
    "verification": (
        "verification failed",
        "… of … values are out of tolerance",
        "… of … values differ",
        "off by a factor of … throughout, allowed 1 ± …",
        "; it is … alone",
        "; no kernel does so alone",
        "failed verification: …",
        "policy.verify.gate takes what is verified, …",
    ),
    "threads-left": (
        "leaves the thread … running",
        "threads that a kernel or a model left are ended with the process: …",
    ),
    "other-memory": ("… shares memory with …", "… has the strides …, the original's …"),
    "verdict-not-kept": ("the verdict cannot be kept: …",),
    "result-of-another-form": (
        "… is …, the original's …",
        "returns …, the original …",
        "… is cut off from autograd",
        "its values differ in shape",
    ),
    "not-verified": (
        "nothing is swapped, so there is nothing to …",
        "nothing could be compared: …",
        "… is on the meta device, and cannot be compared",
        "cannot be compared: …",
        "not reached by the run of the model, so not …",
        "the original cannot be run alone: …",
        "float64 would take … GB, and … GB are free",
        "none, …",
        "policy.verify.thresholds says nothing about …",
        "no copy of it can be made: …",
        "not run with its kernels: …",
        "the mode is fixed to inference",
        "training runs …",
        "the forward failed",
        "nothing here needs a gradient",
        "… was not called by the run of the model, so not …",
        "tokens per second are not measured: …",
        "the model returns no …",
        "attention was not tried with padding: …",
        "the whole model: what is computed from padding is not compared: …",
    ),
    "forward-failed": (
        "raised …",
        "the model raised with the masks of its kernel: …",
        "with the masks of its kernel the model does not call it",
        "writes to …",
        "changes the module: …",
        "changes … for the whole process",
        "os.…(…) would have ended the process without a result",
        "returns the same memory from two calls, …",
        "sets the seed of the global random state",
        "draws from the global random state",
        "gives other bits when it is run again, which the original does not…",
        "its backward gives other bits when it is run again, which the original's does not…",
    ),
}

RUNS: Mapping[str, tuple[str, ...]] = {
    "folder-of-a-run": (
        "… is a file, expected the folder of a run",
        "… is not there, expected the folder of a run",
        "… holds no run: neither …",
        "compare needs a folder, found none",
    ),
    "file-of-a-run": ("holds what no … can hold", "… holds a value that no run writes: …"),
    "run-that-did-not-end": ("the run did not come to its end: it was stopped, or still runs",),
    "job-that-raised": ("the job raised …",),
    "launcher-that-stopped": ("the launcher raised …",),
}
