"""Commands that check and watch: `packhorse audit`, `doctor`, `top` and `bench`."""
