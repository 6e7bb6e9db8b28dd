"""Bridges to trainers and adapters. Each module needs its own package, and is loaded only when you import it.

- :mod:`orthoptim.integrations.lightning`: a callback that watches the distance.
- :mod:`orthoptim.integrations.transformers`: an optimizer and a callback for ``Trainer``.
- :mod:`orthoptim.integrations.peft`: low-rank adapters with orthonormal factors, orthogonal fine-tuning.
- :mod:`orthoptim.integrations.pogo_torch`: checkpoints of pogo-torch.

``accelerate`` needs nothing: see ``examples/accelerate_fsdp2.py``.
"""
