"""seqplan: plan and train dp x pp x tp x sp layouts of transformers with ring self-attention."""

__version__ = "0.1.0"
