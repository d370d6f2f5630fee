"""Who may ask for what: certificates, tokens, and the options that name them."""
