"""O-ViT: a vision transformer whose query, key and value matrices are orthogonal.

Y. Fei, Y. Liu, X. Wei, M. Chen, "O-ViT: Orthogonal vision transformer", 2022; in the size of A. Han et al., 2025.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

CLASSES = 10


class OViT(nn.Module):
    """Patches, a class token, learned positions, pre-norm blocks, a linear head on the class token.

    Args:
        dim: of the tokens, and of the orthogonal matrices; 1024 in the paper.
        depth: number of blocks.
        heads: of each attention.
        hidden: width of the MLPs.
        patch: side of a patch.
        side: of the images.
        channels: of the images.
        dropout: of embeddings, attention and MLPs.

    Example:
        >>> net = OViT(dim=16, depth=2, heads=2, hidden=8)
        >>> net(torch.randn(2, 3, 32, 32)).shape
        torch.Size([2, 10])
    """

    def __init__(
        self,
        dim: int = 1024,
        depth: int = 6,
        heads: int = 4,
        hidden: int = 256,
        *,
        patch: int = 4,
        side: int = 32,
        channels: int = 3,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        self.patches = nn.Conv2d(channels, dim, kernel_size=patch, stride=patch)
        self.class_token = nn.Parameter(torch.empty(1, 1, dim))
        self.positions = nn.Parameter(torch.empty(1, 1 + (side // patch) ** 2, dim))
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.Sequential(*(Block(dim, heads, hidden, dropout) for _ in range(depth)))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, CLASSES)
        for weight in (self.class_token, self.positions, self.head.weight):
            nn.init.trunc_normal_(weight, std=0.02)
        nn.init.zeros_(self.head.bias)

    def forward(self, images: Tensor) -> Tensor:
        """Logits of a batch of normalised images."""
        tokens = self.patches(images).flatten(2).transpose(1, 2)
        tokens = torch.cat((self.class_token.expand(len(images), -1, -1), tokens), dim=1)
        tokens = self.blocks(self.dropout(tokens + self.positions))
        logits: Tensor = self.head(self.norm(tokens[:, 0]))
        return logits


class Block(nn.Module):
    """Attention and MLP, each on normalised tokens and added to them."""

    def __init__(self, dim: int, heads: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attention = OrthogonalAttention(dim, heads, dropout)
        self.mlp = nn.Sequential(
            nn.Linear(dim, hidden), nn.GELU(), nn.Dropout(dropout), nn.Linear(hidden, dim), nn.Dropout(dropout)
        )

    def forward(self, x: Tensor) -> Tensor:
        """The tokens after this block."""
        x = x + self.attention(self.norm1(x))
        result: Tensor = x + self.mlp(self.norm2(x))
        return result


class OrthogonalAttention(nn.Module):
    """Attention whose queries, keys and values are x @ W, without bias; each W is square and starts orthogonal."""

    def __init__(self, dim: int, heads: int, dropout: float) -> None:
        super().__init__()
        if dim % heads:
            raise ValueError(f"dim {dim} is no multiple of the number of heads, {heads}")
        self.heads, self.dropout = heads, dropout
        self.query, self.key, self.value = (nn.Parameter(torch.empty(dim, dim)) for _ in range(3))
        for weight in (self.query, self.key, self.value):
            nn.init.orthogonal_(weight)
        self.output = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        """The tokens, each a mixture of all."""
        q, k, v = (
            (x @ weight).view(*x.shape[:2], self.heads, -1).transpose(1, 2)
            for weight in (self.query, self.key, self.value)
        )
        mixed = functional.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout if self.training else 0.0)
        result: Tensor = self.output(mixed.transpose(1, 2).flatten(2))
        return result
