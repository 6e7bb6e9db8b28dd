"""The optimizer inside of ``wrap``: which ones are refused, and how it steps."""

from collections.abc import Callable
from typing import Any

from torch.optim.optimizer import Optimizer

# the code that torch puts around the step of every optimizer class, to call the hooks
_HOOKED = Optimizer.profile_hook_step(Optimizer.step).__code__


def check_inner(optimizer: object) -> None:
    """Refuse what is not an optimizer, and optimizers that train one point but evaluate another.

    Raises:
        TypeError: with the name of the class and the reason.
    """
    if isinstance(optimizer, type):
        name = optimizer.__name__
        raise TypeError(f"wrap takes an optimizer, but got the class {name}: build it first, {name}(params, lr=...)")
    name = type(optimizer).__name__
    if _has_modes(optimizer):
        raise TypeError(
            f"cannot wrap {name}: its eval() replaces each parameter by an average of iterates (as schedule-free "
            "optimizers do), which is not orthogonal; wrap an optimizer without train() and eval(), or use oo.POGO"
        )
    if not isinstance(optimizer, Optimizer):
        raise TypeError(f"wrap takes a torch.optim.Optimizer, but got {name}")


def _has_modes(optimizer: Any) -> bool:
    if type(optimizer).__name__ == "AcceleratedOptimizer":  # has train and eval whatever it holds
        return _has_modes(optimizer.optimizer)
    if any("train_mode" in group for group in getattr(optimizer, "param_groups", ())):
        return True  # an optimizer that holds a schedule-free one, and shares its groups
    return callable(getattr(optimizer, "train", None)) and callable(getattr(optimizer, "eval", None))


def step_inner(optimizer: Optimizer, *args: Any) -> Any:
    """``optimizer.step(*args)`` without the hooks of all optimizers, which the outer one calls; its own are called.

    Those are ``torch.optim.optimizer.register_optimizer_step_pre_hook`` and ``..._post_hook``. If someone has replaced
    ``step`` in a way that is not known here, what they made of it is called as it is.
    """
    step = _without_hooks(optimizer)
    if step is None:
        return optimizer.step(*args)
    positional: tuple[Any, ...] = (optimizer, *args)
    keywords: dict[str, Any] = {}
    for before in optimizer._optimizer_step_pre_hooks.values():
        result = before(optimizer, positional, keywords)
        if result is not None:
            if not (isinstance(result, tuple) and len(result) == 2):
                raise RuntimeError(f"{before} must return None or a tuple of (new_args, new_kwargs), but got {result}.")
            positional, keywords = result
    loss = step(*positional, **keywords)
    for after in optimizer._optimizer_step_post_hooks.values():
        after(optimizer, positional, keywords)
    return loss


def _without_hooks(optimizer: Any) -> Callable[..., Any] | None:
    step = type(optimizer).step
    if getattr(step, "__code__", None) is not _HOOKED:
        return None
    own = vars(optimizer).get("step")
    if own is not None:
        if not getattr(own, "_wrapped_by_lr_sched", False):
            return None
        optimizer._opt_called = True  # all that a scheduler wants to be told
    unhooked: Callable[..., Any] = step.__wrapped__
    return unhooked
