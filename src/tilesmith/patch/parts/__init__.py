"""The replacements for parts of transformers' models; each takes the place of a module's `forward`.

Files, in reading order:

- `norms.py`: RMSNorm, in Llama's and in Gemma's form.
- `residual.py`: a norm fused with the addition before it, and with the gradient that bypasses the norm.
- `attention_module.py`: rotary positions, and the projections to q, k, v and from attention.
- `default_positions.py`: masks, positions and rotary tables that are made once and kept.
- `decoder.py`: what a decoder passes to its layers: default masks and positions, packed sequences.
- `attention_registry.py`: attention itself, through transformers' registries of attention and mask functions.
- `trials.py`: whether activations and blocks compute what our forms compute, tried on random numbers.
- `feed_forward.py`: feed-forward blocks.
- `loss.py`: the loss without logits.
- `masked_loss.py`: the same for models of masked tokens.
- `hand_written.py`: what looks like a part in models that are not transformers' own, for the report.
"""
