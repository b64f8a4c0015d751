"""The only room that touches Triton's internals, which change with every release."""
