"""The optimal packer: column generation with a certificate of its bound."""
