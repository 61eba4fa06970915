"""Messages about a plan that is applied to a model."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["APPLYING"]

APPLYING: Mapping[str, tuple[str, ...]] = {
    "not-a-model": (
        "a model is a torch.nn.Module, found a …",
        "a … runs code of its own, which no kernel can replace",
        "the replicas of a DataParallel would all run the first one's kernels",
    ),
    "mode": (
        "no mode …",
        "nothing was applied for …, only for …",
        "the model is compiled, and … is for models that are not",
    ),
    "only-layers": ("…: this version of kerncfg replaces layers only",),
    "two-rows": ("… is taken by …, each through its match",),
    "code-changed": (
        "the code has digest …, the plan says …",
        "… was imported before its code changed",
        "build … is not there any more",
    ),
    "import-failed": (
        "… cannot be imported: …",
        "layers.py has …, but … does not import it…",
        "no … there; …",
        "no …/__init__.py",
    ),
    "kernel-class": (
        "a layer kernel is a subclass of torch.nn.Module, this is a …",
        "a layer kernel is stateless, this has an __init__ of its own",
        "a layer kernel has no members but …, this has …",
        "a layer kernel's forward is a method, this is a …",
        "this has no forward",
        "a layer kernel is stateless, its forward changes self: …",
        "its forward is async, and a layer is called without await",
        "its forward is a generator, it has a yield",
        "its forward calls super(), which means nothing in the layer that borrows it",
    ),
    "kernel-modes": (
        "has_backward is false, and … needs gradients",
        "can_torch_compile is not true, and … runs under torch.compile",
        "…, which is neither true nor false",
    ),
    "signature": ("its forward is …, that of … is …", "the signature of ….forward cannot be read"),
    "functions": (
        "it takes …, … takes …",
        "the signature of … cannot be read",
        "a function's kernel is a subclass of torch.nn.Module or a function, this is a …",
        "a function's kernel is a class or a function, this is a module with a state of its own",
        "its forward uses …, and a function has no self",
        "its module's functions share the global …, which one of them sets: a copy would not see it",
        "it reads __name__, which its copy has not",
        "… took the whole forward, which calls it",
        "a kernel took the whole forward, by …",
    ),
    "reads-past-a-wrapper": (
        "its forward reads inside self.…, past …",
        "the adapter … there",
        "the wrapper around its forward",
        "its forward hooks",
    ),
    "attribute": (
        "its forward reads self.…, which the module has not",
        "when.… asks for what the module has not",
        "when.… cannot be read: …",
    ),
    "condition-on-the-module": ("needs dtype …, found …", "needs … …, found …"),
    "another-device": ("the module is on …, the plan is for …",),
    "wrapped": (
        "wrapped: something set a forward on the instance, and the layer's own cannot be reached inside it",
        "wrapped by the adapter … around base_layer",
        "compiled by TorchScript",
        "its class computes its forward, …",
        "the layer's own kernel_condition says no",
    ),
    "excluded": ("excluded by …",),
    "swaps-nothing": (
        "policy.strict: rows that swap nothing: …",
        "the plan names kernels, and no module runs one: …",
    ),
    "no-sites": ("no layer …", "no module matches …", "no forward… calls …", "… inherited … no layer in this model"),
    "copies": (
        "… that runs a kernel cannot be copied or saved: …",
        "… was copied or read without its kernel: …",
        "a … was saved with kernels that it cannot run here: …",
        "the forward of a … was wrapped after its kernel was applied, …",
    ),
    "reverted": ("… cannot be reverted while … is on this model", "… decides here", "reverted"),
}
